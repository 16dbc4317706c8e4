"""What a model prints: on stderr, labelled, each line once, and never in the document of --json."""

import io
import json
import pdb
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from command_lines import CommandLines
from launching import run

from dpexp.devices import running_on
from dpexp.engine.printed_text import PrintedText, on_stderr

PRINTING = """
import torch
from torch import nn

class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        print("In Model: input size", tuple(x.shape))
        return self.fc(x)
"""
SHORT = ("--no-check", "--no-track", "--steps", "9", "--warmup", "2", "--phase-steps", "2")


def labelled(stderr: str) -> dict[str, int]:
    """How often each line of a replica or rank was printed; a trial call of the whole model has no label."""
    return Counter(line for line in stderr.splitlines() if " | In Model" in line)


def test_each_replica_prints_a_line_once_with_its_device(
    command_lines: CommandLines, dpexp_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    words = ["whole", "--virtual", "2", "--model", "printing.py:Printing", *SHORT]
    home = str(dpexp_home)
    for more in ([], ["--json"], ["--dry-run"], ["--dry-run", "--json"]):
        done = command_lines.run([*words, *more], tmp_path, DPEXP_HOME=home)
        assert done.code == 0, done.stderr
        assert "In Model" not in done.stdout
        assert not more or more == ["--dry-run"] or json.loads(done.stdout)["name"]
        expected = [f"cpu:{i} | In Model: input size ({rows}, 5)" for i in range(2) for rows in (15, 5)]
        assert labelled(done.stderr) == dict.fromkeys(expected, 1)


def test_each_rank_prints_a_line_once_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    words = (
        "ddp",
        "--virtual",
        "2",
        "--model",
        "printing.py:Printing",
        "--no-check",
        "--steps",
        "5",
        "--json",
    )
    done = run(*words, folder=tmp_path)
    assert json.loads(done.stdout)["status"] == "finished"
    expected = [f"rank {i} | In Model: input size ({rows}, 5)" for i in range(2) for rows in (15, 5)]
    assert dict.fromkeys(expected, 1).items() <= labelled(done.stderr).items()


def test_text_is_written_by_lines_whatever_the_pieces() -> None:
    stream = io.StringIO()
    text = PrintedText(stream)
    for piece in ("a", "b\nc", "\n", "ab\n", "d"):
        text.write(piece)
    with running_on(torch.device("cpu", 3), 0):
        text.write("\nab\n")
    assert stream.getvalue() == "ab\nc\ncpu:3 | d\ncpu:3 | ab\n"


def test_unfinished_lines_are_written_at_a_flush_and_at_the_end() -> None:
    stream, text = io.StringIO(), io.StringIO()
    with on_stderr(stream):
        for _ in range(2):
            print("loading", end="", flush=True)
            assert stream.getvalue().startswith("loading")
            print(" is done")
        print("a", end="", flush=True)
        with running_on(torch.device("cpu", 3), 0):
            print("b", end="", flush=True)
        thread = threading.Thread(target=print, args=("of a thread",), kwargs={"end": ""})
        thread.start()
        thread.join()
    assert stream.getvalue() == "loading is done\na\ncpu:3 | b\nof a thread\n"
    with on_stderr(text):
        for _ in range(5):
            print(".", end="")
    assert text.getvalue() == ".....\n"


def test_a_debugger_shows_its_prompt_and_repeated_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO("p 1 + 1\np 1 + 1\nc\n"))
    before = sys.gettrace()
    with on_stderr(stream), running_on(torch.device("cpu", 1), 0):
        pdb.Pdb(nosigint=True, readrc=False).set_trace()
        print("continued")
    sys.settrace(before)
    assert stream.getvalue().endswith("(Pdb) 2\n(Pdb) 2\n(Pdb) continued\n".replace("(Pdb)", "cpu:1 | (Pdb)"))
