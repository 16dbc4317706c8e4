"""User models, data and losses: README's examples, unchanged, under the real strategies."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from command_lines import CommandLines

README = Path(__file__).resolve().parents[2] / "README.md"
SHORT = ["--no-track", "--steps", "3", "--warmup", "1", "--phase-steps", "1"]


def example(file: str) -> str:
    """The code that README shows for this file."""
    match = re.search(rf"`{re.escape(file)}` is\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert match is not None, f"README.md does not show {file}"
    return match[1]


def commands(file: str) -> list[str]:
    """The command lines of README that use this file, without the program's name."""
    program = "python scripts/run.py "
    lines = [line for line in README.read_text().splitlines() if line.startswith(program)]
    return [line.removeprefix(program) for line in lines if f" {file}:" in line]


def check(line: str, file: str, command_lines: CommandLines, home: Path, folder: Path) -> None:
    """The command line works in a folder with README's file, and its run is verified."""
    (folder / file).write_text(example(file))
    (folder / "README.md").write_bytes(README.read_bytes())
    words = shlex.split(line)
    is_run = words[0] != "models"
    finished = command_lines.run([*words, *SHORT * is_run, "--json"], folder, DPEXP_HOME=str(home))
    assert finished.code == 0, finished.stderr
    result = json.loads(finished.stdout)
    if is_run:
        assert (result["status"], result["verification"]["passed"]) == ("finished", True)
        assert {"cpu:0", "cpu:1"} <= {row["device"] for row in result["shapes"]}
    else:
        assert result["parameters"] > 0


@pytest.mark.parametrize("line", commands("mine.py"))
def test_user_model_of_readme_works(
    line: str, command_lines: CommandLines, dpexp_home: Path, tmp_path: Path
) -> None:
    check(line, "mine.py", command_lines, dpexp_home, tmp_path)


@pytest.mark.extra("transformers")
@pytest.mark.parametrize("line", commands("language.py"))
def test_hugging_face_model_of_readme_works(
    line: str, command_lines: CommandLines, dpexp_home: Path, tmp_path: Path
) -> None:
    check(line, "language.py", command_lines, dpexp_home, tmp_path)


def test_readme_shows_user_models_in_every_kind_of_layout() -> None:
    shown = [line.split()[0] for file in ("mine.py", "language.py") for line in commands(file)]
    assert set(shown) == {"models", "whole", "block", "hybrid", "place"}
