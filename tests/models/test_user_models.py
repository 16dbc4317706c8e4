"""User models, data and losses: README's examples, unchanged, under the real strategies."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from command_lines import CommandLines

from dpexp.config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.tensors import digest

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
    assert set(shown) == {"models", "whole", "block", "hybrid", "place", "ddp"}


def test_random_data_of_readme_is_the_same_on_every_rank_and_in_every_run(
    command_lines: CommandLines, dpexp_home: Path, tmp_path: Path
) -> None:
    (line,) = [line for line in commands("mine.py") if line.startswith("ddp ")]
    (tmp_path / "mine.py").write_text(example("mine.py"))
    words, home = [*shlex.split(line), *SHORT, "--json"], str(dpexp_home)
    runs = [command_lines.run(words, tmp_path, DPEXP_HOME=home) for _ in range(2)]
    assert [run.code for run in runs] == [0, 0], runs[0].stderr
    first, second = (json.loads(run.stdout) for run in runs)
    assert first["digest"] == second["digest"]
    assert first["steps"]["loss"] == second["steps"]["loss"]


DRAWS = """
import random
import numpy as np
import torch
from torch import nn

def data(more=0):
    torch.rand(more)
    return [(torch.rand(3) + random.random(), torch.tensor([np.random.rand()]).float()) for _ in range(4)]

def model():
    made = nn.Linear(3, 1)
    nn.init.constant_(made.bias, random.random() + np.random.rand())
    return made
"""


def test_factories_may_draw_from_any_global_generator(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)

    def made(seed: int, more: int = 0) -> tuple[str, str]:
        options = {"model": f"{tmp_path}/draws.py:model", "data": f"{tmp_path}/draws.py:data:more={more}"}
        prepared = prepare(RunConfig("single", devices="cpu", seed=seed, **options))
        return prepared.data.digest, digest(prepared.model.state_dict())

    assert made(0) == made(0)
    assert made(0)[0] != made(1)[0]
    assert made(0)[1] != made(1)[1]
    assert made(0)[1] == made(0, more=1)[1]  # weights do not depend on what the data draws
