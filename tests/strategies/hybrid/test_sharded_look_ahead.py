"""Look-ahead over ranks: the bits and the bytes of a run without it, and ends that leave no rank behind."""

import json
import signal
from pathlib import Path

import pipelined_in_ranks
import pytest
from in_ranks import in_ranks
from launching import AGENT, SCRIPT, start_forked, torchrun, until_step, wait

from dpexp.record.journal.fold import fold


def test_pipelined_shards_give_the_bits_of_serial_ones_and_send_only_changed_rows_again() -> None:
    """Every split, kind of table and stream of ids, with delays in the stages of one rank."""
    in_ranks(3, pipelined_in_ranks.__file__, *pipelined_in_ranks.CASES)


# --- ends -------------------------------------------------------------------------------------------

FAILING = """
import os, threading
import torch
from torch import nn
READ = []

def fail(stage):
    if os.environ["RANK"] == ("0" if stage == "dense" else "1"):
        raise ZeroDivisionError(stage)

class Host(nn.Module):
    def __init__(self, stage):
        super().__init__()
        self.table, self.stage = nn.Embedding(50, 4), stage

    def forward(self, ids):
        if threading.current_thread() is not threading.main_thread():
            READ.append(ids)
            if self.stage == "lookup" and len(READ) == 5:
                fail("lookup")
        return self.table(ids)

class Failing(nn.Module):
    def __init__(self, stage=""):
        super().__init__()
        self.embedding, self.linear, self.stage = Host(stage), nn.Linear(4, 3), stage

    def example(self, samples, generator):
        return torch.randint(50, (samples,), generator=generator), torch.zeros(samples, dtype=torch.long)

    def forward(self, ids):
        logits = self.linear(self.embedding(ids))
        if self.stage == "dense" and len(READ) >= 5:
            fail("dense")
        if self.stage == "backward" and len(READ) >= 5:
            logits.register_hook(lambda _: fail("backward"))
        return logits
"""


def words(folder: Path, stage: str = "") -> list[str]:
    """The command line of a run with a model that this writes to the folder."""
    (folder / "failing.py").write_text(FAILING)
    model = f"{folder}/failing.py:Failing" + (f":stage={stage}" if stage else "")
    ahead = ["--pipeline", "--sparse", "--shard-embedding", "--lookahead", "3", "--comm-timeout", "600"]
    return ["hybrid", "--model", model, *ahead, "--no-check", "--steps", "1000000"]


@pytest.mark.parametrize("stage", ["lookup", "dense", "backward"])
def test_an_exception_on_one_rank_ends_all_with_its_own_traceback(
    stage: str, tmp_path: Path, dpexp_home: Path
) -> None:
    done = torchrun(2, *words(tmp_path, stage))
    assert done.returncode != 0
    (folder,) = (dpexp_home / "runs").iterdir()
    record = fold(folder / "journal.jsonl")
    assert record.error is not None
    assert (record.status, record.error["type"]) == ("failed", "ZeroDivisionError")
    assert "in fail" in record.error["traceback"]
    assert stage in record.error["message"]
    assert (folder / "record.json").exists()


def test_a_signal_ends_ranks_that_look_ahead(tmp_path: Path, dpexp_home: Path) -> None:
    process = start_forked(*AGENT, "2", SCRIPT, *words(tmp_path), "--no-track")
    until_step(dpexp_home, 20, process)
    process.send_signal(signal.SIGINT)
    assert wait(process).returncode != 0
    (folder,) = (dpexp_home / "runs").iterdir()
    record = json.loads((folder / "record.json").read_bytes())  # not if the rank had to be killed
    assert (record["status"], record["damage"]) == ("killed", [])
