"""A watch in a user's own tests, alone and under torchrun, and the example of ``examples/``."""

from pathlib import Path

import pytest
from command_lines import ROOT, python
from launching import AGENT
from printed import write_examples

EXAMPLE = ROOT / "examples" / "watched_loop.py"
RANKS = {"one process": (), "two ranks": (*AGENT, "2")}


@pytest.mark.parametrize("ranks", RANKS)
def test_the_docs_test_of_a_loop_passes(ranks: str, tmp_path: Path) -> None:
    write_examples("docs/watching.md", tmp_path)
    quiet = ("-q", "-p", "no:cacheprovider", "test_loop.py")
    done = python(*RANKS[ranks], "-m", "pytest", *quiet, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == (2 if RANKS[ranks] else 1), done.stdout


@pytest.mark.parametrize("ranks", RANKS)
def test_the_example_is_right_and_with_wrong_is_wrong(ranks: str, tmp_path: Path, runs: Path) -> None:
    done = python(*RANKS[ranks], EXAMPLE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "right: 4 steps" in done.stdout
    done = python(*RANKS[ranks], EXAMPLE, "--wrong", folder=tmp_path)
    assert done.returncode == 1
    assert "the loss of each of 4 micro-batches is not divided by 4" in done.stdout + done.stderr
