"""The small CNN under DistributedDataParallel: ``python processes.py WORLD STEPS`` prints a Record.

The program starts itself under torchrun. The global batch is that of the other cells, cut by rows over the
ranks; each rank weighs its loss by its rows, so that uneven pieces give the gradient of the whole batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from itertools import chain, count, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpexp import data, models
from dpexp.data import Batch, Dataset

BATCH, WARMUP = 256, 12


def made(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Dataset]:
    """The model and the data, the same in every process."""
    source = data.source("digits")
    torch.manual_seed(0)
    model = models.build("cnn", source.features)
    return model.to(dtype), source.dataset(model, 0).to(dtype)


def step(model: nn.Module, samples: Dataset, batch: Batch) -> float:
    """Forward and backward of this rank's rows; returns this rank's part of the loss."""
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs, targets = batch.inputs[0].chunk(world)[rank], batch.targets.chunk(world)[rank]
    loss = samples.loss(model(inputs), targets) * (len(inputs) * world / batch.rows)
    loss.backward()
    return loss.item() / world


def gradient_error() -> float:
    """||g - g_single|| / ||g_single|| in float64, on a batch of 13 rows."""
    model, samples = made(torch.float64)
    batch = next(samples.batches(13, seed=0, epoch=0))
    samples.loss(model(*batch.inputs), batch.targets).backward()
    expected = torch.cat([each.grad.flatten() for each in model.parameters()])
    again, _ = made(torch.float64)
    step(DistributedDataParallel(again), samples, batch)
    found = torch.cat([each.grad.flatten() for each in again.parameters()])
    return ((found - expected).norm() / expected.norm()).item()


def work(steps: int, answer: Path) -> None:
    """One rank: verify, warm up, time steps; rank 0 writes what it found to a file before anything ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    error = gradient_error()
    plain, samples = made()
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = chain.from_iterable(samples.batches(BATCH, seed=0, epoch=epoch) for epoch in count())
    facts: dict[str, list[float]] = {"time_ms": [], "loss": [], "samples": []}
    for number, batch in enumerate(islice(batches, WARMUP + steps)):
        start = time.perf_counter()
        loss = step(model, samples, batch)
        optimizer.step()
        optimizer.zero_grad()
        taken = 1000 * (time.perf_counter() - start)
        total = torch.tensor(loss)
        dist.all_reduce(total)
        if number >= WARMUP:
            for key, value in zip(facts, (round(taken, 6), total.item(), batch.rows), strict=True):
                facts[key].append(value)
    if dist.get_rank() == 0:
        answer.write_text(json.dumps({"steps": facts, "gradient_error": error}))
    dist.barrier()
    dist.destroy_process_group()


def main(world: int, steps: int) -> None:
    """Run the ranks and print the Record of what rank 0 measured."""
    from dpexp.environment import environment
    from dpexp.record import Record, new_run_id, now

    record = Record(
        run_id=new_run_id(), name=f"processes-{world}", strategy="processes", execution="real",
        parent=os.environ.get("DPEXP_PARENT", ""), experiment=Path(__file__).parent.name, started=now(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        ranks = f"--nproc-per-node={world}"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                ranks,
                __file__,
                str(steps),
                str(answer),
            ],
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode:
            sys.exit(f"torchrun ended with {done.returncode}")
        found = json.loads(answer.read_text())
    record.status, record.ended, record.steps = "finished", now(), found["steps"]
    record.environment = environment([], 1, torch.backends.cpu.get_cpu_capability())
    record.verification = {
        "checked": True, "dtype": "float64", "output_error": None, "gradient_error": found["gradient_error"],
        "tolerance": 1e-12, "passed": found["gradient_error"] <= 1e-12, "note": "",
    }  # fmt: skip
    record.summarize()
    print(record.to_json())


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        work(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
