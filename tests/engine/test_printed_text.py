"""What a model prints: on stderr, labelled, each line once, and never in the document of --json."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import torch
from command_lines import CommandLines
from launching import run

from dpexp.devices import running_on
from dpexp.engine.printed_text import PrintedText

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
