"""Factories: the syntax of --model and --data, options by signatures, and errors that name the fault."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dpexp.config.errors import ConfigError
from dpexp.config.factories import find

USER = """
import dataclasses
from beside import SIDE
@dataclasses.dataclass
class Sized:
    side: int = SIDE
def make(width: int = 4, in_=1, rate: "float" = 0.5, flat: bool = False, label: str = ""):
    return Sized, width, in_, rate, flat, label
def required(width, depth): return width
def anything(**options): return options
def read(path, length=1): return path, length
def fitted(lr=None): return lr
def failing(): raise KeyError('deep inside')
def loss(outputs, targets, delta=1.0): return outputs - targets * delta
table = {}
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "user.py"
    path.write_text(USER)
    (tmp_path / "beside.py").write_text("SIDE = 3\n")
    return path


def call(text: str, context: dict[str, Any] | None = None, **aliases: str) -> Any:
    factory = find("--thing", text, aliases)
    return factory.call(factory.load(), context)


def test_a_factory_in_a_file_gets_its_options_as_the_types_of_its_parameters(user_file: Path) -> None:
    sized, *rest = call(f"{user_file}:make:width=8,in=2,rate=1,flat=true,label=7")
    assert rest == [8, 2, 1.0, True, "7"]
    assert [type(each) for each in rest] == [int, int, float, bool, str]
    assert sized().side == 3


def test_a_file_is_imported_once(user_file: Path) -> None:
    assert call(f"{user_file}:make")[0] is call(f"{user_file}:make:width=2")[0]


def test_an_alias_has_options_of_its_own_that_others_replace(user_file: Path) -> None:
    aliases = {"wide": f"{user_file}:make:width=100,in=7"}
    assert call("wide:in=2", **aliases)[1:3] == (100, 2)
    assert call(" wide ", **aliases)[1:3] == (100, 7)
    assert find("--thing", "wide:in=2", aliases).options == {"width": 100, "in": 2}


def test_a_path_stands_before_the_options_and_may_hold_colons_and_equal_signs(user_file: Path) -> None:
    aliases = {"file": f"{user_file}:read"}
    assert call("file:/data/a:c=d.txt,length=3", **aliases) == ("/data/a:c=d.txt", 3)
    assert call(f"{user_file}:read:path=a.txt") == ("a.txt", 1)


def test_commas_within_brackets_do_not_split(user_file: Path) -> None:
    assert call(f"{user_file}:anything:widths=(8,16),names=['a','b']") == {
        "widths": (8, 16),
        "names": ["a", "b"],
    }


def test_a_factory_gets_the_context_that_it_has_a_parameter_for_and_no_option(user_file: Path) -> None:
    context = {"lr": "known", "width": 9}
    assert call(f"{user_file}:fitted", context) == "known"
    assert call(f"{user_file}:make", context)[1:3] == (9, 1)
    assert call(f"{user_file}:make:width=2", context)[1:3] == (2, 1)
    assert call(f"{user_file}:anything:a=1", context) == {"a": 1}


def test_a_loss_is_bound_to_its_options_and_called_with_two_arguments(user_file: Path) -> None:
    factory = find("--loss", f"{user_file}:loss:delta=2", {})
    assert factory.bound(factory.load(), 2)(10, 3) == 4
    wrong = find("--loss", f"{user_file}:loss:gamma=2", {})
    with pytest.raises(ConfigError, match=r"takes no option 'gamma'; there is delta$"):
        wrong.bound(wrong.load(), 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bux", "--thing: unknown thing 'bux'; there are box, file: did you mean 'box'?"),
        ("box:in=3,in=4", "option 'in' is given twice"),
        (
            "box:widht=8",
            "box takes no option 'widht'; there are width, in, rate, flat, label: did you mean 'width'?",
        ),
        ("box:width=1.5", "'width' takes a whole number, found 1.5"),
        ("box:flat=1", "'flat' takes true or false, found 1"),
        ("box:5", "box takes no option 'path'; there are width, in, rate"),
        ("box:in=3,5", "'5' is not an option; write KEY=VALUE"),
        ("file", "file needs path: write file:path=…"),
        ("no/such.py:make", "there is no file no/such.py"),
        ("some/model.py", "name the factory after the file, as some/model.py:make"),
        ("no_such_package:make", "cannot import no_such_package: ModuleNotFoundError"),
        ("$:required:width=8", "needs depth: write"),
        ("$:failing", "user.py:failing raised KeyError: 'deep inside' ("),
        ("$:maek", "has no 'maek': did you mean 'make'?"),
        ("$:table", "raised TypeError: {} is not a callable object"),
    ],
)
def test_an_error_names_the_option_and_the_fault(user_file: Path, text: str, words: str) -> None:
    aliases = {"box": f"{user_file}:make", "file": f"{user_file}:read"}
    with pytest.raises(ConfigError) as caught:
        call(text.replace("$", str(user_file)), **aliases)
    assert words in str(caught.value)
    assert str(caught.value).count("--thing") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("import no_such_package_at_all\n", r"No module named 'no_such_package_at_all' \(.*bad.py, line 1\)"),
        ("def make(:\n", r"SyntaxError: .*bad.py, line 1"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(.*bad.py, line 1\)"),
    ],
)
def test_a_failing_import_of_a_file_is_explained(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(ConfigError, match=words):
        call(f"{tmp_path}/bad.py:make")


LAZY = """
def net():
    try:
        raise RuntimeError('operator torchvision::nms does not exist')
    except RuntimeError as error:
        raise ImportError('no Net.') from error
"""


def test_a_failing_import_of_a_lazy_package_is_explained_by_its_cause(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(LAZY)
    said = r"raised ImportError: no Net; caused by RuntimeError: operator torchvision::nms does not exist \("
    with pytest.raises(ConfigError, match=said):
        call(f"{tmp_path}/lazy.py:net")


def test_modules_of_the_current_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_of_cwd.py").write_text("def make(): return 'made'\n")
    assert call("mine_of_cwd:make") == "made"
