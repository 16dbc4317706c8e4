"""Factories of users: they are imported, get their options, and every error in them is named."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import ROOT

from dpexp.config.errors import ConfigError
from dpexp.config.factories import Registry
from dpexp.config.spec import Spec


def call(text: str, **context: object) -> object:
    factory = Registry("--thing", "thing", {}).find(Spec(text))
    return factory.call(factory.load(), context)


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


def test_a_name_that_a_module_does_not_make_has_a_suggestion(user_file: Path) -> None:
    with user_file.open("a") as file:
        file.write("def __getattr__(name):\n    raise AttributeError(name)\n")
    with pytest.raises(ConfigError, match=r"has no 'maek': did you mean 'make'\?"):
        call(f"{user_file}:maek")


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
        "import sys; sys.path = [p for p in sys.path if p]\n"
        "from dpexp.config.factories import Factory\n"
        "print(Factory('--thing mine:make', 'mine:make').load()())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "made\n", done.stderr
