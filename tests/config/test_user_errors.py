"""User errors: for each bad input and fault the exit code and the words that the messages must have.

Every case is a command line of scripts/run.py. Exit code 2 means that nothing is written; any other code
means that the run is recorded with the right status.
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from helpers.command_lines import HELPERS, script

from dpexp.record.fold import load_record

USER = HELPERS / "user_error_cases.py"
SHORT = ["--no-track", "--steps", "2", "--warmup", "1", "--phase-steps", "1"]
HOST = ["--devices", "cpu"]
STATUS = {0: "finished", 1: "failed"}


@dataclass(frozen=True)
class Case:
    """A command line; ``$user`` is helpers/user_error_cases.py, ``expected`` are words of its output."""

    line: str
    expected: tuple[str, ...]
    code: int = 2
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line.replace("$user", shlex.quote(str(USER))))


def bad(line: str, *expected: str, **fields: Any) -> Case:
    """Bad input: exit code 2, nothing written."""
    return Case(line, expected, **fields)


def failed(line: str, *expected: str, **fields: Any) -> Case:
    """A run that starts and fails."""
    return Case(line, expected, code=1, **fields)


def done(line: str, *expected: str, **fields: Any) -> Case:
    """A run that works, with these words in its output."""
    return Case(line, expected, code=0, **fields)


CASES = [
    # options, the environment and config files
    bad("hybird", "No such command 'hybird'"),
    bad("single", "DPEXP_BATCHSIZE is not an option: did you mean 'DPEXP_BATCH_SIZE'?",
        environment={"DPEXP_BATCHSIZE": "3"}),
    bad("single", "--experiment 'a\\nb': it must be one line of printable characters",
        environment={"MLFLOW_EXPERIMENT_NAME": "a\nb"}),
    bad("whole --config a.toml", "--config a.toml", "overwrite", files={"a.toml": "seed = 1\nseed = 2"}),
    bad("whole --config a.toml", "for strategy 'block', the command is 'whole'",
        files={"a.toml": 'strategy = "block"'}),
    bad("whole --config a.json", "must hold keys and values, found a list", files={"a.json": "[1]"}),
    bad("single", "DPEXP_HOME", "gone is not a directory: make it", environment={"DPEXP_HOME": "gone/home"}),
    bad("ddp --virtual 2", "cannot write a journal at /proc", environment={"DPEXP_HOME": "/proc"}),
    # devices
    bad("whole --devices 99", "--devices 99: this machine has", "--virtual 99 emulates 99 devices"),
    bad("whole --devices gpu", "--devices 'gpu': use auto, cpu, a number, or names like cuda:0,cuda:1"),
    bad("whole --virtual 2 --backend torch", "--backend torch", "--backend portable does"),
    done("whole --virtual 8 --batch-size 3 --full",
         "Every batch (3 rows) runs on 3 of 8 devices: 5 idle meanwhile"),
    # names of submodules
    bad("block --model $user:Nested --block layers.0 --block layers.0.0",
        "--block 'layers.0.0' lies inside --block 'layers.0'"),
    done("block --model $user:Nested --block layers --virtual 2", "a copy of layers.0-1"),
    bad("hybrid --host linear --sparse", "--sparse: host module 'linear' (Linear) has no embedding"),
    bad("place --place block1", "--place 'block1' is not NAME=DEVICE, as layers.*=cuda:0"),
    bad("place --place 'block*=cpu' --place 'block1=cpu:0' --virtual 1", "'block1' already has a device"),
    bad("place --place 'block1=cpu:7' --virtual 2", "no device 'cpu:7'; there are cpu, cpu:0, cpu:1"),
    # models
    bad("whole --model $user:OneRaises", "returned OneRaises, not a torch.nn.Module"),
    bad("whole --model $user:stopping", "raised Stop: not today (", "user_error_cases.py, line"),
    bad("whole --model $user:verbose", "raised ValueError: word word", "… (200012 characters)"),
    bad("whole --model $user:LeavingForward --dry-run", "the start of the run raised SystemExit: 0 ("),
    bad("whole --model $user:Empty", "the model has no parameters: there is nothing to train; --eval"),
    bad("whole --model $user:Frozen", "has 4 parameters, all of them frozen", "--eval"),
    bad("single --model $user:wrapped", "the model in nn.DataParallel chooses its own devices"),
    bad("fsdp --model $user:SparseTable", "those of table are sparse: make them with sparse=False"),
    bad("whole --model $user:Locked", "Locked cannot be copied", "'lock' of the model holds a lock"),
    done("whole --model $user:Locked --no-check --virtual 2", "--no-check"),
    done("whole --model $user:Lazy --virtual 2", "first"),
    # data, losses and optimizers
    bad("whole --data random:samples=0", "--data random:samples=0: it needs at least 1 sample"),
    bad("ddp --virtual 2 --batch-size 101", "--batch-size 101 is larger than the data, which has 100",
        "give --data random:samples=101, or a --batch-size of at most 100"),
    bad("hybrid --data text:short.txt", "has 5 bytes; length=32 needs at least 33",
        files={"short.txt": "brief"}),
    bad("whole --data digits --model embedding",
        "the model does not fit the data: module 'embedding' (Embedding(1000, 10)) got (30, 1, 8, 8)"),
    bad("whole --data $user:OneRaises --model $user:Model", "FileNotFoundError: image 37 is gone (",
        "user_error_cases.py, line"),
    bad("whole --model $user:RaisingExample", "RaisingExample.example raised OSError: no samples today ("),
    bad("whole --loss $user:vector_loss", "the loss must be a scalar tensor", "found shape (30,)"),
    bad("whole --loss $user:raising_loss", "the loss does not take", "AssertionError: no targets ("),
    done("whole --virtual 2 --accumulate 2 --steps 3", "The last 1 batch of 3 trained nothing"),
    # forwards and steps
    bad("whole --model $user:Raising", "KeyError: 'mask' (", "user_error_cases.py, line"),
    failed("whole --virtual 2 --model $user:RaisingInReplicas",
           "LookupError", "replica 0 on device cpu:0", "where are the others?", "user_error_cases.py, line"),
]  # fmt: skip


def run(case: Case, folder: Path) -> CompletedProcess[str]:
    return script("run.py", *short(case.words), folder=folder, **case.environment)


def short(words: list[str]) -> list[str]:
    """The words, with options that make a run short and local unless they are given."""
    strategy, *rest = words
    added = list(SHORT)
    for option in ("--steps", "--warmup"):
        if option in rest:
            place = added.index(option)
            del added[place : place + 2]
    host = [] if {"--virtual", "--devices"} & set(rest) else HOST
    return [strategy, *added, *host, *rest]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line)
def test_a_user_error_is_one_message(case: Case, dpexp_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name, content in case.files.items():
        (folder / name).write_text(content)
    before = sorted(folder.rglob("*"))
    result = run(case, folder)
    output = result.stdout + result.stderr
    assert result.returncode == case.code, output
    assert "Traceback" not in output
    for words in case.expected:
        assert words in (output if case.code != 2 else result.stderr)
    if case.code == 2:
        assert result.stdout == ""
        assert not list(dpexp_home.iterdir())
        left = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]  # Python's
        assert left == before
    else:
        (journal,) = (dpexp_home / "runs").glob("*/journal.jsonl")
        record = load_record(journal.parent)
        assert (record.status, record.damage) == (STATUS[case.code], [])


def test_debug_shows_the_traceback_before_the_message(dpexp_home: Path, tmp_path: Path) -> None:
    case = failed("single --model $user:NoWayBack --debug", "no way back", "in backward")
    result = run(case, tmp_path)
    assert result.returncode == case.code
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1].startswith("error: ")
    for words in case.expected:
        assert words in result.stderr
