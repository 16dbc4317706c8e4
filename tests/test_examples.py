"""The examples compute what they say."""

import re
import runpy

import pytest
from helpers.command_lines import ROOT, python

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
