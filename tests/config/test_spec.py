"""The syntax of --model and --data, and errors that name the fault and the known names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import ROOT

from dpexp.config import spec
from dpexp.config.errors import ConfigError
from dpexp.config.spec import Entry, Option

REGISTRY = {
    "box": Entry(
        "A box.",
        "tests.none:Box",
        (
            Option("in", int, 5, "Width."),
            Option("rate", float, 0.5, "Rate.", min=0),
            Option("flat", bool, False, "Flat.", min=None),
            Option("label", str, "", "Label."),
        ),
    ),
    "file": Entry("A file.", "tests.none:File", (Option("length", int, 1, "Length."),), argument="PATH"),
}


def parse(text: str) -> spec.Spec:
    return spec.parse(text, REGISTRY, "--thing", "thing")


def test_a_name_without_options() -> None:
    parsed = parse("box")
    assert (parsed.name, parsed.options) == ("box", {})


def test_values_are_literals_of_the_options_type() -> None:
    assert parse("box:in=7,rate=1,flat=true,label=a b").options == {
        "in": 7,
        "rate": 1.0,
        "flat": True,
        "label": "a b",
    }


def test_an_argument_may_hold_commas_colons_and_equal_signs() -> None:
    parsed = parse("file:/data/a,b:c=d.txt,length=3")
    assert (parsed.argument, parsed.options) == ("/data/a,b:c=d.txt", {"length": 3})


def test_commas_within_brackets_do_not_split() -> None:
    parsed = parse("package.module:make:widths=(8,16),names=['a','b']")
    assert parsed.options == {"widths": (8, 16), "names": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bux", "unknown thing 'bux'; there are box, file: did you mean 'box'?"),
        ("box:rat=3", "box takes no option 'rat'; there are in, rate, flat, label: did you mean 'rate'?"),
        ("box:in=wide", "'in' takes a whole number, found 'wide'"),
        ("box:in=1.5", "'in' takes a whole number, found 1.5"),
        ("box:in=True", "'in' takes a whole number, found True"),
        ("box:in=0", "'in' must be at least 1, found 0"),
        ("box:rate=-1", "'rate' must be at least 0, found -1.0"),
        ("box:rate=1e999-1e999", "'rate' takes a number"),
        ("box:flat=1", "'flat' takes true or false, found 1"),
        ("box:in=3,in=4", "option 'in' is given twice"),
        ("box:5", "'5' is not an option; write KEY=VALUE"),
        ("file", "it needs PATH, as file:PATH"),
        ("file:,length=2", "it needs PATH"),
        ("file:a.txt,lenght=2", "file takes no option 'lenght'; there is length: did you mean 'length'?"),
        ("no/such.py:make", "there is no file no/such.py"),
        ("box,in=3,rate=1", "options follow a colon, as box:in=3,rate=1"),
        ("box in=3", "options follow a colon, as box:in=3"),
        ("some/model.py", "name the factory after the file, as some/model.py:make"),
        ("", "unknown thing ''"),
    ],
)
def test_bad_text_is_a_config_error_that_names_the_fault(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--thing")


# --- user factories ------------------------------------------------------------------------------


def call(text: str, **context: object) -> object:
    parsed = parse(text)
    return spec.call(spec.load(parsed, f"--thing {text}"), parsed, f"--thing {text}", context)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "user.py"
    path.write_text(
        "import dataclasses\n"
        "from beside import SIDE\n"
        "@dataclasses.dataclass\n"
        "class Sized:\n    side: int = SIDE\n"
        "def make(width=4, in_=1):\n    return Sized, width, in_\n"
        "def required(width, depth):\n    return width\n"
        "def anything(**options):\n    return options\n"
        "def fitted(data_features=None):\n    return data_features\n"
        "def failing():\n    raise KeyError('deep inside')\n"
        "table = {}\n"
    )
    (tmp_path / "beside.py").write_text("SIDE = 3\n")
    return path


def test_a_factory_in_a_file_gets_its_options(user_file: Path) -> None:
    sized, *rest = call(f"{user_file}:make:width=8,in=2")  # type: ignore[misc]
    assert rest == [8, 2]
    assert sized().side == 3


def test_a_file_is_imported_once(user_file: Path) -> None:
    assert call(f"{user_file}:make")[0] is call(f"{user_file}:make:width=2")[0]  # type: ignore[index]


def test_a_factory_gets_the_context_that_it_has_a_parameter_for(user_file: Path) -> None:
    assert call(f"{user_file}:fitted", data_features="known") == "known"
    assert call(f"{user_file}:make", data_features="known")[1:] == (4, 1)  # type: ignore[index]
    assert call(f"{user_file}:anything:a=1", data_features="known") == {"a": 1}


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("make:widht=8", "takes no option 'widht'; there are width, in: did you mean 'width'?"),
        ("required:width=8", "needs depth: write"),
        ("failing", "raised KeyError: 'deep inside' ("),
        ("failing", "user.py, line 15)"),
        ("maek", "has no 'maek': did you mean 'make'?"),
        ("table", "is of type dict, not a factory to call"),
    ],
)
def test_an_error_in_a_factory_is_named(user_file: Path, rest: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(f"{user_file}:{rest}")
    assert words in str(caught.value)


def test_a_failing_import_of_a_file_is_explained(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.py", tmp_path / "broken.py"
    missing.write_text("import no_such_package_at_all\n")
    broken.write_text("def make(:\n")
    with pytest.raises(
        ConfigError, match=r"No module named 'no_such_package_at_all' \(.*missing.py, line 1\)"
    ):
        call(f"{missing}:make")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*broken.py, line 1"):
        call(f"{broken}:make")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot import no_such_package: .*No module named 'no_such_package'"
    ):
        call("no_such_package:make")


def test_modules_of_the_current_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(): return 'made'\n")
    code = (
        "import sys; sys.path = [p for p in sys.path if p]; from dpexp.config import spec\n"
        "parsed = spec.parse('mine:make', {}, '--thing', 'thing')\n"
        "print(spec.load(parsed, '')())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "made\n", done.stderr
