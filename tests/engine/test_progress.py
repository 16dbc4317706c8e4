"""The progress bar: what it shows on a terminal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.in_terminal import in_terminal

CODE = """
import time
from dpexp.engine.progress import ProgressBar
with ProgressBar() as bar:
    bar.begin("warm up")
    bar.begin("steps", 1000)
    for flush in range(4):
        time.sleep(0.15)  # a flush every half a second; tqdm redraws ten times a second at most
        bar.advance(250, 0.25, 1.5)
    bar.begin("phases")
"""

COMMAND = """
import os, sys
from dpexp.commands.app import run_app
from dpexp.commands.run import app
sys.argv = ["run.py", *os.environ["WORDS"].split()]
try:
    run_app(app)
except SystemExit:
    pass
"""


def test_a_terminal_shows_stage_steps_step_time_and_loss() -> None:
    shown = in_terminal(CODE, columns=100)
    assert "warm up…" in shown
    assert "phases…" in shown
    assert re.search(r"steps: +\d+%\|.*\| \d+/1000 .*0\.25 ms/step, loss 1\.5", shown)


def test_a_pipe_shows_nothing() -> None:
    shown = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert shown.stdout + shown.stderr == ""


def test_a_terminal_shows_that_torch_is_imported_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch begins')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for words in (["single", "--no-track"], ["single", "--dry-run"], ["ddp", "--virtual", "2"]):
        monkeypatch.setenv("WORDS", " ".join(words))
        shown = in_terminal(COMMAND, columns=100)
        assert "importing torch…" in shown.partition("torch begins")[0], shown
        assert "torch begins" in shown
