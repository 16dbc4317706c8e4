"""The examples, and a watch in a user's own tests, compute what they say."""

import re
import runpy
from pathlib import Path

import pytest
from helpers.command_lines import ROOT, python
from helpers.launching import AGENT
from helpers.printed import write_examples

import dpexp


def test_by_hand_computes_the_losses_of_whole(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "by_hand.py"), run_name="__main__")
    printed = re.findall(r"loss (\S+)  on one device (\S+) .* (\S+)$", capsys.readouterr().out, re.MULTILINE)
    record = dpexp.run("whole", virtual=3, steps=4, warmup=0, track=False, quiet=True)
    assert len(printed) == 4
    for loss, (by_hand, single, apart) in zip(record.steps["loss"], printed, strict=True):
        assert float(by_hand) == pytest.approx(loss, rel=1e-6)
        assert float(single) == pytest.approx(loss, rel=1e-6)
        assert float(apart) < 1e-6


def test_the_silent_bug_is_found_with_its_step_cause_and_parameter() -> None:
    done = python(ROOT / "examples" / "silent_bug.py")
    assert done.returncode == 0, done.stderr
    *losses, found = done.stdout.splitlines()
    assert len(losses) == 4
    assert found.startswith(
        "WRONG step 1: gradients: of '1.bias' differ by 5.3e-01: ranks of unequal labels "
    )


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
    done = python(*ranks, ROOT / "examples" / "watched_loop.py", *wrong, folder=tmp_path)
    assert done.returncode == code, done.stderr
    words = "the loss of each of 4 micro-batches is not divided by 4" if wrong else "right: 4 steps"
    assert words in done.stdout + done.stderr
