"""How a run ends, by signals, and exceptions of any kind: one message, the exit code, a Record."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from helpers.command_lines import script
from helpers.user_error_cases import Model, Stop
from torch import Tensor, nn

from dpexp.record.fold import load_record
from dpexp.record.journal import RECORD
from dpexp.record.record import Record

WORDS = ["single", "--devices", "cpu", "--no-track", "--steps", "2000000", "--warmup", "1", "--quiet"]


# --- models -----------------------------------------------------------------------------------------

STEPS = 30


class Ending(Model):
    """Calls ``end`` in training step ``STEPS``."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def forward(self, x: Tensor) -> Any:
        if not self.training or not torch.is_grad_enabled() or x.dtype != torch.float32:
            return super().forward(x)
        if self.done == STEPS - 1:
            self.done += 1
            self.end()
        outputs: Any = super().forward(x)
        outputs.register_hook(self._count)  # not each forward is of a step: some are observed only
        return outputs

    def _count(self, gradient: Tensor) -> None:
        self.done += 1

    def end(self) -> None:
        raise NotImplementedError


class SignalPair(Ending):
    """Receives a signal, and a second one at the given call of a function after it."""

    def __init__(self, first: str, second: str, call: int) -> None:
        super().__init__()
        self.signals, self.left = (signal.Signals[first], signal.Signals[second]), call

    def end(self) -> None:
        sys.setprofile(self.count)
        os.kill(os.getpid(), self.signals[0])

    def count(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), self.signals[1])


def signal_pair(call: int, first: str = "SIGINT", second: str = "SIGTERM") -> nn.Module:
    return SignalPair(first, second, call)


class Swallowing(Ending):
    """Receives SIGINT, and swallows its exception."""

    def end(self) -> None:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)


class Stopping(Ending):
    """Raises an exception that is not an Exception."""

    def end(self) -> None:
        raise Stop("that is all")


# --- tests ------------------------------------------------------------------------------------------


def end(home: Path, model: str) -> tuple[CompletedProcess[str], Record]:
    """The result of a run with a model of this file, and its Record."""
    result = script("run.py", *WORDS, "--model", f"{__file__}:{model}")
    sys.setprofile(None)
    (folder,) = (home / "runs").iterdir()
    return result, load_record(folder)


def check_whole(home: Path, record: Record) -> None:
    (folder,) = (home / "runs").iterdir()
    assert record.damage == []
    assert Record.from_dict(json.loads((folder / RECORD).read_bytes())) == record
    steps = len(record.steps["time_ms"])
    assert STEPS - 2 <= steps == len(record.steps["loss"]) <= STEPS - 1, "SIGTERM may let the step end"
    assert sorted(path.name for path in folder.iterdir()) == ["journal.jsonl", "record.json"]


@pytest.mark.parametrize("call", [2, 89, 6000])
@pytest.mark.parametrize(
    ("pair", "code", "message"),
    [
        ("first=SIGINT,second=SIGTERM", 130, "interrupted; what was measured is recorded"),
        ("first=SIGTERM,second=SIGINT", 143, "ended by SIGTERM"),
    ],
    ids=["SIGINT-SIGTERM", "SIGTERM-SIGINT"],
)
def test_a_second_signal_does_not_disturb_the_end(
    dpexp_home: Path, pair: str, call: int, code: int, message: str
) -> None:
    result, record = end(dpexp_home, f"signal_pair:{pair},call={call}")
    assert (result.returncode, result.stderr) == (code, f"error: {message}\n")
    assert record.status == "killed"
    check_whole(dpexp_home, record)


def test_a_signal_that_user_code_swallows_ends_the_run_after_the_step(dpexp_home: Path) -> None:
    result, record = end(dpexp_home, "Swallowing")
    assert (result.returncode, result.stderr) == (130, "error: interrupted; what was measured is recorded\n")
    assert (record.status, len(record.steps["loss"])) == ("killed", STEPS - 1)


def test_an_exception_of_any_kind_fails_the_run(dpexp_home: Path) -> None:
    result, record = end(dpexp_home, "Stopping")
    assert result.returncode == 1
    assert result.stderr.startswith("error: Stop: that is all (")
    assert len(result.stderr.splitlines()) == 1
    assert record.status == "failed"
    assert record.error is not None
    assert record.error["type"] == "Stop"
    assert "in end" in record.error["traceback"]
    check_whole(dpexp_home, record)
