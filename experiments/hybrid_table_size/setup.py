"""A run with a large table, after and before making the table alone: ``python setup.py ROWS`` prints its Record.

The metric ``setup`` is the time from the start of the run to its first measured step, verification included,
over the time in which torch makes such a table.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.engine.observations import run_facts
from dpexp.engine.passes import execute
from dpexp.engine.prepare import prepare
from dpexp.engine.progress import ProgressBar
from dpexp.record.figures import summarize
from dpexp.record.fold import finish
from dpexp.record.journal import Journal, now
from dpexp.record.record import Record

WIDTH = 64


class Stages(ProgressBar):
    """Notes when the measured steps begin."""

    measured_at = 0.0

    def begin(self, stage: str, total: int | None = None) -> None:
        if stage == "steps":
            self.measured_at = time.perf_counter()


def made_s(rows: int) -> float:
    """Seconds in which torch makes a table."""
    start = time.perf_counter()
    nn.Embedding(rows, WIDTH, sparse=True)
    return time.perf_counter() - start


def run(rows: int) -> tuple[Record, float]:
    """A run of hybrid with its verification, and the seconds until its first measured step."""
    config = RunConfig(
        "hybrid",
        model=f"embedding:rows={rows},dim={WIDTH}",
        data="random:samples=512",
        batch_size=512,
        steps=100,
        warmup=5,
        phase_steps=4,
        threads=1,
        virtual=1,
        track=False,
        options={"sparse": True},
    )
    stages, start = Stages(), time.perf_counter()
    prepared = prepare(config)
    with tempfile.TemporaryDirectory() as scratch:
        with Journal(Path(scratch) / "runs", "setup") as journal:
            journal.set(run_facts(config, prepared))
            execute(prepared, journal, stages)
            journal.set(status="finished", ended=now())
        return finish(journal.path), stages.measured_at - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    before = made_s(int(sys.argv[1]))
    record, setup_s = run(int(sys.argv[1]))
    alone = (before + made_s(int(sys.argv[1]))) / 2
    record.metrics["setup"] = [round(setup_s / alone, 4)]
    summarize(record)
    print(record.to_json())
