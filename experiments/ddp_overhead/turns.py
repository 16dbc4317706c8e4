"""One bare step, one recorded step, one step of a single process, in turns: ``python turns.py WORLD ROWS STEPS [keep]``.

The program starts itself under torchrun and prints a Record. The same processes train the small CNN on the
same global batches in three ways, in alternating steps, so that other load on the machine affects all ways alike:

    rank 0  | bare | recorded | alone |       | bare | recorded | …
    rank 1  | bare | recorded |       | alone | bare | recorded | …

``bare`` is a DistributedDataParallel script for torchrun; ``recorded`` is a step of dpexp, with all that dpexp does
between steps; ``alone`` is one process that computes the global batch, bare. A sample is the mean of ``STEPS``
steps, by the first rank's clock: ``ratio`` is recorded over bare, ``efficiency`` is alone over WORLD times
recorded.

With ``keep`` the C library keeps the memory that a step frees, in all ways. Without, it may return it to the
kernel and map it again in the next step, which depends on the layout of the process's heap.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dpexp.data.batch import Batch
from dpexp.engine.prepare import Prepared

SAMPLES = 8
WARMUP = 4
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""glibc: free bytes at the heap's top before they are returned; bytes from which a block is mapped (at most 2**25)."""


def bare(rows: int, features: Any, *, alone: bool) -> Iterator[None]:
    """A plain training loop for one process or for torchrun: each ``next`` is a step. It records nothing."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from dpexp.config.factories.spec import Spec
    from dpexp.models.registry import MODELS, build

    torch.manual_seed(0)
    built = build(MODELS.find(Spec("cnn")))
    model = built if alone else DistributedDataParallel(built)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    world, rank = (1, 0) if alone else (dist.get_world_size(), dist.get_rank())
    inputs, targets = features
    for epoch in count():
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(rows):
            local = batch.chunk(world)[rank]
            loss = torch.nn.functional.cross_entropy(model(inputs[local]), targets[local])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


@dataclass
class InTurns(Prepared):
    """A prepared run; before each of its steps, the other ways compute one. ``seconds`` has the times of each way."""

    others: dict[str, Callable[[int], bool]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def local_batches(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        clock, batches = time.perf_counter, super().local_batches(epoch, first=first)
        for _ in range(first, math.ceil(self.data.samples / self.config.batch_size)):
            done = len(self.seconds["recorded"])
            for name in sorted(self.others, reverse=done % 4 >= 2):  # no way always follows the same one
                self.group.barrier()
                start = clock()
                if self.others[name](done):
                    self.seconds[name].append(clock() - start)
            self.group.barrier()
            start = clock()
            yield next(batches)
            self.seconds["recorded"].append(clock() - start)


def work(rows: int, steps: int, answer: Path) -> None:
    """One rank; the first writes the results of all ranks to a file before any process ends."""
    from dpexp.config.run_config import RunConfig
    from dpexp.distributed.signals import SignalHandler
    from dpexp.distributed.world import World
    from dpexp.engine.measure import Measurement
    from dpexp.engine.observations import Observations, run_facts
    from dpexp.engine.prepare_ranks import prepare_ranks
    from dpexp.engine.progress import ProgressBar
    from dpexp.record.journal.journal import Journal, NullJournal
    from dpexp.timing import Timer

    config = RunConfig(
        "ddp",
        model="cnn",
        data=f"random:samples={4 * rows}",
        batch_size=rows,
        steps=SAMPLES * steps,
        warmup=WARMUP,
        threads=1,
    )
    prepared = InTurns(**vars(prepare_ranks(config, World.of())))
    group = prepared.group
    samples = next(prepared.data.batches(4 * rows, shuffle=False))
    features = samples.inputs[0], samples.targets
    together, alone = (bare(rows, features, alone=is_alone) for is_alone in (False, True))

    def takes_bare(step: int) -> bool:
        next(together)
        return True

    def takes_alone(step: int) -> bool:
        if step % group.size != group.rank:
            return False
        next(alone)
        return True

    prepared.others = {"bare": takes_bare, "alone": takes_alone}
    with tempfile.TemporaryDirectory() as scratch, ProgressBar() as bar:
        journal = Journal(Path(scratch) / "runs", "turns") if group.is_first else NullJournal()
        journal.set(run_facts(prepared))
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
        observations = Observations(prepared, placed)
        trainer = prepared.trainer(placed)
        measurement = Measurement(
            prepared, trainer, journal, bar, lambda: None, observations, SignalHandler()
        )
        measurement.warm_up()
        prepared.seconds.clear()
        measurement.time_steps()
        journal.close()
    by_rank = group.all_gather({name: means(seconds) for name, seconds in prepared.seconds.items()})
    if group.is_first:
        way = by_rank[0] | {
            "alone": [fmean(each) for each in zip(*(rank["alone"] for rank in by_rank), strict=True)]
        }
        answer.write_text(json.dumps(facts(**way, world=group.size)))
    group.destroy()


def means(seconds: list[float]) -> list[float]:
    """The means of ``SAMPLES`` parts of equal length."""
    size = math.ceil(len(seconds) / SAMPLES)
    return [fmean(seconds[start : start + size]) for start in range(0, len(seconds), size)]


def facts(bare: list[float], recorded: list[float], alone: list[float], world: int) -> dict[str, list[float]]:
    """The metrics that compare the three ways, sample by sample."""
    from dpexp.record.figures.step_times import efficiency, speed_up

    return {
        "time_ms": [1000 * each for each in recorded],
        "ratio": [ours / theirs for ours, theirs in zip(recorded, bare, strict=True)],
        "efficiency": [
            efficiency(speed_up(one, ours), world) for ours, one in zip(recorded, alone, strict=True)
        ],
    }


def main(world: str, rows: str, steps: str, memory: str = "") -> None:
    """Run the ranks and print the Record of what the first one measured."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        done = subprocess.run(
            [sys.executable, *agent, __file__, rows, steps, str(answer)],
            stdout=sys.stderr,
            env=os.environ | (KEEP if memory == "keep" else {}),
            check=False,
        )
        if done.returncode:
            sys.exit(f"torchrun ended with {done.returncode}")
        found = json.loads(answer.read_text())

    from dpexp.study.sweep.program import program_record

    record = program_record(__file__, "turns", found.pop("time_ms"), int(rows), found)
    record.environment["threads"] = 1  # of a rank
    print(record.to_json())


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(*sys.argv[1:])
