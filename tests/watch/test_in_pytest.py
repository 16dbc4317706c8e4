"""A watch in a user's own tests, and the example of ``examples/`` alone and under torchrun."""

from pathlib import Path

import pytest
from helpers.command_lines import ROOT, python
from helpers.launching import AGENT
from helpers.printed import write_examples

EXAMPLE = ROOT / "examples" / "watched_loop.py"


def test_the_docs_test_of_a_loop_passes(tmp_path: Path) -> None:
    write_examples("docs/watching.md", tmp_path)
    quiet = ("-q", "-p", "no:cacheprovider", "test_loop.py")
    done = python("-m", "pytest", *quiet, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(("ranks", "wrong", "code"), [((), (), 0), ((*AGENT, "2"), ("--wrong",), 1)])
def test_the_example_is_right_and_with_wrong_is_wrong(
    ranks: tuple[str, ...], wrong: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = python(*ranks, EXAMPLE, *wrong, folder=tmp_path)
    assert done.returncode == code, done.stderr
    words = "the loss of each of 4 micro-batches is not divided by 4" if wrong else "right: 4 steps"
    assert words in done.stdout + done.stderr
