"""One step in one piece, in pieces, and on virtual devices, in turn: ``python pieces.py MODEL ROWS DEVICES``.

The program prints a Record. All ways compute the same model of dpexp on a batch of ROWS random samples:

    batch      dpexp: run.py single, with torch's own intra-op threads
    pieces     plain PyTorch: forward, loss and backward of each device's rows on a copy of the model, as many pieces at
               a time as there are cores, with one intra-op thread each; nothing is copied, added up or updated
    emulated   dpexp: run.py whole --virtual DEVICES

So ``pieces`` is what the operators of the pieces take, the least that a step on virtual devices can take here.

    | batch | pieces | emulated | emulated | pieces | batch | batch | …        a turn: all ways

In its turn a way computes a few steps that are not timed, then several, whose median is a sample. So other load on
the machine affects all ways alike, and a ratio is that of two samples of one turn.
"""

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import Prepared, prepare
from dpexp.parallel.thread_pool import cores
from dpexp.record.clock import now
from dpexp.study.sweep.program import program_record
from dpexp.timing import Timer

TURNS, WARM_UP, STEPS = 20, 4, 20


def prepared(model: str, rows: int, virtual: int) -> Prepared:
    """A run of ``whole`` on so many virtual devices, or of ``single``."""
    config = RunConfig(
        "whole" if virtual else "single",
        model=model,
        data=f"random:samples={rows}",
        batch_size=rows,
        **({"virtual": virtual} if virtual else {"devices": "cpu"}),
    )
    return prepare(config, one_batch=False)


def step_of(run: Prepared) -> Callable[[], object]:
    """A step as a run of dpexp takes it."""
    placed = run.strategy.place(run.model, run.selection.used, Timer())
    trainer, batch = run.trainer(placed), next(run.local_batches(0))
    return lambda: trainer.step(batch)


def in_pieces(run: Prepared, count: int) -> Callable[[], object]:
    """Forward, loss and backward of ``count`` pieces of the batch, in plain PyTorch."""
    batch: Batch = next(run.local_batches(0))
    models = [copy.deepcopy(run.model) for _ in range(count)]
    pieces = list(zip(models, batch.inputs[0].chunk(count), batch.targets.chunk(count), strict=True))
    threads = min(cores(), count)

    def compute(first: int) -> None:
        for model, inputs, targets in pieces[first::threads]:
            run.data.loss(model(inputs), targets).backward()
            for parameter in model.parameters():
                parameter.grad = None

    if threads == 1:
        return partial(compute, 0)
    before = torch.get_num_threads()
    workers = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    list(workers.map(compute, range(threads)))  # starts them
    torch.set_num_threads(before)  # what a thread sets is also the default of those that start later
    return lambda: list(workers.map(compute, range(threads)))


def measure(ways: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """{way: milliseconds a step, a sample for each turn}."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in list(ways)[:: -1 if turn % 2 else 1]:  # none always follows the same one
            times = []
            for _ in range(WARM_UP + STEPS):
                start = time.perf_counter()
                ways[name]()
                times.append(1000 * (time.perf_counter() - start))
            found[name].append(statistics.median(times[WARM_UP:]))
    return found


def main(model: str, rows: int, devices: int) -> None:
    """Measure all ways and print the Record; the time of its steps is that of the emulated ones."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # the output of libraries goes to stderr
    started, single = now(), prepared(model, rows, 0)
    found = measure(
        {
            "pieces": in_pieces(single, devices),  # copies the model before it is placed
            "batch": step_of(single),
            "emulated": step_of(prepared(model, rows, devices)),
        }
    )
    batch, pieces, emulated = found["batch"], found["pieces"], found["emulated"]
    metrics = {f"{name}_ms": times for name, times in found.items()}
    metrics["pieces_over_batch"] = [a / b for a, b in zip(pieces, batch, strict=True)]
    metrics["emulated_over_pieces"] = [a / b for a, b in zip(emulated, pieces, strict=True)]
    metrics["replica_ms"] = [(a - b) / devices for a, b in zip(emulated, batch, strict=True)]
    record = program_record(__file__, f"pieces-{model}-{rows}", emulated, rows, metrics, started=started)
    record.execution = "virtual"
    os.write(stdout, record.to_json().encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
