"""User models and data: they are the same on every rank and in every run, and those of the page work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_lines import script
from helpers.printed import ROOT, blocks, write_examples

from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.tensors import digest

SHORT = ["--no-track", "--steps", "3", "--warmup", "1", "--phase-steps", "1"]
PAGE = "docs/models-and-data.md"


def test_a_log_of_clicks_is_data(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "click_logs.py")
    subprocess.run([sys.executable, program, "clicks.tsv"], cwd=tmp_path, check=True)
    printed = [words for block in blocks(PAGE) for words in block.commands() if "hybrid" in words]
    (words,) = [words[2:] for words in printed if "click_logs.py" in " ".join(words)]
    line = [word.replace("examples/click_logs.py", program) for word in words]
    run = script("run.py", *line, *SHORT, "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verification"]["passed"] is True


@pytest.mark.slow
def test_models_of_hugging_face_work_as_the_page_has_them(tmp_path: Path, dpexp_home: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.needs == "transformers"]
    write_examples(PAGE, tmp_path)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for words in block.commands():
        done = script("run.py", *words[2:], folder=tmp_path, DPEXP_TRACK="0")
        assert done.returncode == 0, done.stderr


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
