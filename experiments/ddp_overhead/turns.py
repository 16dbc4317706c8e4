"""A bare DistributedDataParallel loop and dpexp's recorded one, in turns: ``python turns.py WORLD ROWS STEPS``.

The program starts itself under torchrun and prints a Record. In the same processes the two loops train the
small CNN on the same batches, one after the other, so that whatever else the machine does meets both. A
sample of ``time_ms`` is the mean over a recorded turn, what happens between its steps included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

TURNS = 8
WARMUP = 2
"""Steps of a turn that are not timed: they come first."""


def bare(rows: int, features: Any) -> Iterator[None]:
    """A training loop as one writes it for torchrun, a step each time; nothing is recorded."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from dpexp import models

    torch.manual_seed(0)
    model = DistributedDataParallel(models.build("cnn", None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs, targets = features
    for epoch in count():
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(rows):
            own = batch.chunk(world)[rank]
            loss = torch.nn.functional.cross_entropy(model(inputs[own]), targets[own])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def take(steps: Iterator[None], count: int) -> None:
    """So many steps."""
    for _ in islice(steps, count):
        pass


def work(rows: int, steps: int, answer: Path) -> None:
    """One rank; the first writes what it found to a file before anything ends."""
    from dpexp import loop
    from dpexp.config import RunConfig
    from dpexp.distributed import Stop, World
    from dpexp.progress import Bar
    from dpexp.record import Journal
    from dpexp.run import Unwritten
    from dpexp.timing import Timer

    config = RunConfig(
        "ddp",
        model="cnn",
        data=f"random:samples={4 * rows}",
        batch_size=rows,
        steps=steps,
        warmup=WARMUP,
        threads=1,
    )
    prepared = loop.prepare_together(config, World.of())
    whole = next(prepared.data.batches(4 * rows, shuffle=False))
    plain = bare(rows, (whole.inputs[0], whole.targets))
    facts: dict[str, list[float]] = {"time_ms": [], "ratio": []}
    with tempfile.TemporaryDirectory() as scratch, Bar() as bar:
        journal = Journal(Path(scratch) / "runs", "turns") if prepared.ranks.is_first else Unwritten()
        journal.set(loop.describe(prepared))
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
        seen = loop.Seen(prepared, placed)
        for turn in range(TURNS):
            trial = loop.Trial(prepared, placed, Timer(), journal, bar, lambda: None, seen, Stop())
            trial.warm_up()
            take(plain, WARMUP)
            ways = {"bare": partial(take, plain, steps), "recorded": trial.time_steps}
            taken = {}
            for way in sorted(ways, reverse=turn % 2 == 1):  # who is first changes from turn to turn
                prepared.ranks.barrier()
                start = time.perf_counter()
                ways[way]()
                prepared.ranks.barrier()
                taken[way] = time.perf_counter() - start
            facts["time_ms"].append(1000 * taken["recorded"] / steps)
            facts["ratio"].append(taken["recorded"] / taken["bare"])
        journal.close()
    if prepared.ranks.is_first:
        answer.write_text(json.dumps(facts))
    prepared.ranks.leave()


def main(world: str, rows: str, steps: str) -> None:
    """Run the ranks and print the Record of what the first one measured."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        done = subprocess.run(
            [sys.executable, *agent, __file__, rows, steps, str(answer)], stdout=sys.stderr, check=False
        )
        if done.returncode:
            sys.exit(f"torchrun ended with {done.returncode}")
        found = json.loads(answer.read_text())

    import torch

    from dpexp.environment import environment
    from dpexp.record import Record, new_run_id, now

    times = [round(each, 6) for each in found["time_ms"]]
    record = Record(
        run_id=new_run_id(), name="turns", strategy="turns", execution="real", status="finished",
        parent=os.environ.get("DPEXP_PARENT", ""), experiment=Path(__file__).parent.name, started=now(),
    )  # fmt: skip
    record.ended = record.started
    record.environment = environment([], 1, torch.backends.cpu.get_cpu_capability())
    record.steps = {"time_ms": times, "loss": [None] * len(times), "samples": [int(rows)] * len(times)}
    record.metrics = {"ratio": found["ratio"]}
    record.summarize()
    print(record.to_json())


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(*sys.argv[1:])
