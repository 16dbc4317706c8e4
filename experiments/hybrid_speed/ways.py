"""One step of each way to train a model with a large embedding table, in turn: ``python ways.py ROWS DENSE``.

The program prints a Record. The table has ROWS rows, a multiple of 1000; DENSE is ``linear`` or ``mlp``. All ways start
with the same weights and train on the same batches with SGD, in float32, with one thread:

    way            table     dense part   gradient of the table
    tutorial       host      device       dense    PyTorch's tutorial, its class fixed
    dense          device    device       dense    plain PyTorch
    sparse         device    device       sparse   plain PyTorch
    accelerate     host      device       sparse   Accelerate's device map; left out where it is not installed
    dataparallel   all       all          dense    PyTorch's DataParallel; without an accelerator it only calls the module
    emulated       both      both         dense    dpexp's DataParallel over two virtual devices; not beside an accelerator
    serial         host      device       sparse   dpexp: run.py hybrid --sparse

The device is the first accelerator. Without one it is the CPU, and for dpexp a virtual device.

    | tutorial | dense | sparse | … | serial | serial | … | dense | tutorial | tutorial | …        a turn: all ways

In its turn a way computes one step that is not timed, then several: a sample is their mean. So other load on the
machine affects all ways alike, and a ratio is that of two samples of one turn.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpexp import devices
from dpexp.data.batch import Batch

DIM, CLASSES = 64, 10
HIDDEN = {"linear": 0, "mlp": 1024}
"""The width of the dense part's three hidden layers; 0 for none. The larger one has 2.2 million parameters."""
IDS, BATCHES, LR = 512, 64, 0.1
COMPARED = 2
"""Steps after which the weights of all ways are compared."""
TURNS, BLOCK_S, MOST = 3, 0.15, 300
"""Turns; the time that a way's block of steps should take; the most steps of a block."""
RATIOS = (
    ("tutorial", "serial"),
    ("dataparallel", "dense"),
    ("emulated", "dense"),
    ("serial", "sparse"),
    ("serial", "accelerate"),
)


class Model(nn.Module):
    """Ids ``(batch,)`` -> logits ``(batch, 10)``: a table (rows, 64), then a linear layer or a perceptron."""

    def __init__(self, rows: int, hidden: int, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = (torch.randn(1000, DIM) * DIM**-0.5).repeat(rows // 1000, 1)  # drawing 1 GB takes 2 s
        self.embedding = nn.Embedding.from_pretrained(table, freeze=False, sparse=sparse)
        widths = [DIM, *[hidden] * 3, CLASSES] if hidden else [DIM, CLASSES]
        layers = [nn.Linear(width, after) for width, after in pairwise(widths)]
        between = [part for layer in layers for part in (layer, nn.ReLU())]
        self.dense = nn.Sequential(*between[:-1])

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.embedding(ids))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniform ids and classes, for ``--data random``."""
        ids = torch.randint(self.embedding.num_embeddings, (samples,), generator=generator)
        return ids, torch.randint(CLASSES, (samples,), generator=generator)


class TutorialModel(Model):
    """The class of the tutorial's «Part of the model on CPU and part on the GPU», which does not run as printed.

    There the modules are arguments of ``super().__init__``, which takes none, and ``device`` is not defined.
    """

    def __init__(self, rows: int, hidden: int, device: torch.device) -> None:
        super().__init__(rows, hidden)
        self.dense.to(device)
        self.device = device

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.embedding(ids)  # on the CPU
        return self.dense(vectors.to(self.device))  # on the GPU


@dataclass
class Work:
    """What all ways do: a model of this size on these batches. ``next`` of a way trains on one and gives its loss."""

    rows: int
    hidden: int
    batches: Sequence[Batch]
    device: torch.device

    def plain(self, model: Model, called: nn.Module, ids_on: torch.device) -> Way:
        """A training loop as a script has it; ``called`` is the model or what wraps it."""

        def steps() -> Generator[Tensor]:
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for batch in cycle(self.batches):
                outputs = called(batch.inputs[0].to(ids_on))
                loss = functional.cross_entropy(outputs, batch.targets.to(outputs.device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss.detach()

        return steps(), parameters(model)


def parameters(model: Model) -> list[Tensor]:
    """The table, then the parameters of the dense part."""
    return [model.embedding.weight, *model.dense.parameters()]


Way = tuple[Iterator[Tensor], list[Tensor]]
"""The steps, and the parameters that they train."""

# --- the ways ------------------------------------------------------------------------------------


def tutorial(work: Work) -> Way:
    """The tutorial's class."""
    model = TutorialModel(work.rows, work.hidden, work.device)
    return work.plain(model, model, devices.HOST)


def dense(work: Work, sparse: bool = False) -> Way:
    """The whole model on the device."""
    model = Model(work.rows, work.hidden, sparse).to(work.device)
    return work.plain(model, model, work.device)


def sparse(work: Work) -> Way:
    """The same, with sparse gradients of the table."""
    return dense(work, sparse=True)


def accelerate(work: Work) -> Way | None:
    """Accelerate's hooks move what a submodule takes to its device. None where the package is missing."""
    try:
        from accelerate import dispatch_model
    except ImportError:
        print("accelerate is left out: pip install '.[experiments]'", file=sys.stderr)
        return None
    model = Model(work.rows, work.hidden, sparse=True)
    device_map = {"embedding": "cpu", "dense": str(work.device)}
    # with another main device it would copy the whole table there in every step
    called = dispatch_model(model, device_map, main_device="cpu", force_hooks=True)
    return work.plain(model, called, devices.HOST)


def dataparallel(work: Work) -> Way:
    """PyTorch's DataParallel over all accelerators."""
    model = Model(work.rows, work.hidden).to(work.device)
    return work.plain(model, nn.DataParallel(model), work.device)


def emulated(work: Work) -> Way | None:
    """dpexp's DataParallel over two virtual devices."""
    from dpexp.parallel import DataParallel

    if work.device != devices.HOST:
        return None
    both = devices.virtual(2)
    model = devices.place(Model(work.rows, work.hidden), both[0])
    return work.plain(model, DataParallel(model, both), work.device)


def serial(work: Work) -> Way:
    """dpexp's hybrid, a step as a run of it takes it."""
    from dpexp.config.run_config import RunConfig
    from dpexp.engine.prepare import prepare
    from dpexp.timing import Timer

    config = RunConfig(
        "hybrid",
        model=f"{__file__}:Model:rows={work.rows},hidden={work.hidden}",
        data=f"random:samples={IDS}",
        batch_size=IDS,
        lr=LR,
        threads=1,
        options={"sparse": True},
        **({"devices": "1"} if devices.accelerators() else {"virtual": 1}),
    )
    prepared = prepare(config, one_batch=False)
    trained = parameters(prepared.model)  # before it is placed
    trainer = prepared.trainer(prepared.strategy.place(prepared.model, prepared.selection.used, Timer()))
    return (trainer.step(batch).detach() for batch in cycle(work.batches)), trained


WAYS: tuple[Callable[[Work], Way | None], ...] = (
    tutorial,
    dense,
    sparse,
    accelerate,
    dataparallel,
    emulated,
    serial,
)

# --- measuring -----------------------------------------------------------------------------------


def work_of(rows: int, hidden: int) -> Work:
    """Uniform ids and classes; the first accelerator, or the CPU."""
    rng = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(BATCHES):
        ids = torch.randint(rows, (IDS,), generator=rng)
        batches.append(Batch((ids,), torch.randint(CLASSES, (IDS,), generator=rng), IDS, IDS))
    return Work(rows, hidden, batches, next(iter(devices.accelerators()), devices.HOST))


def first_steps(way: Way, work: Work) -> tuple[Tensor, float]:
    """Train on the first batches: the weights after them (rows looked up, then the dense part), the last one's seconds."""
    ids = torch.cat([batch.inputs[0] for batch in work.batches[:COMPARED]]).unique()
    steps, (table, *others) = way
    for _ in range(COMPARED):
        start = time.perf_counter()
        float(next(steps))
        step_s = time.perf_counter() - start
    weights = [table.detach().index_select(0, ids.to(table.device)), *others]
    return torch.cat([each.detach().cpu().double().flatten() for each in weights]), step_s


def timed(way: Way, steps: int, device: torch.device) -> float:
    """Milliseconds per step, the mean of several after one that does not count, from idle device to idle device."""
    next(way[0])
    devices.synchronize([device])
    start = time.perf_counter()
    for _ in islice(way[0], steps):
        pass
    devices.synchronize([device])
    return 1000 * (time.perf_counter() - start) / steps


def figures(rows: int, hidden: int) -> dict[str, list[float]]:
    """``metrics`` of the Record: each way's samples in ms, their ratios turn by turn, and the largest difference."""
    work = work_of(rows, hidden)
    ways = {make.__name__: way for make in WAYS if (way := make(work)) is not None}
    first = {name: first_steps(way, work) for name, way in ways.items()}
    expected = first["dense"][0]
    difference = max(float((weights - expected).norm() / expected.norm()) for weights, _ in first.values())
    steps = {name: min(MOST, max(1, round(BLOCK_S / step_s))) for name, (_, step_s) in first.items()}
    time_ms: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in list(ways)[:: -1 if turn % 2 else 1]:  # none always follows the same one
            time_ms[name].append(timed(ways[name], steps[name], work.device))
    ratios = {
        f"{one}_over_{other}": [a / b for a, b in zip(time_ms[one], time_ms[other], strict=True)]
        for one, other in RATIOS
        if one in ways and other in ways
    }
    samples = {f"{name}_ms": [round(ms, 6) for ms in times] for name, times in time_ms.items()}
    return samples | ratios | {"difference": [difference]}


def main(rows: int, dense: str) -> None:
    """Measure all ways and print the Record; the time of its steps is that of plain PyTorch with sparse gradients."""
    from dpexp.record.journal import now
    from experiments.programs import program_record

    stdout = os.dup(1)
    os.dup2(2, 1)  # the output of libraries goes to stderr
    torch.set_num_threads(1)
    started, found = now(), figures(rows, HIDDEN[dense])
    record = program_record(f"{dense}-{rows}", found["sparse_ms"], IDS, found, started=started)
    device = next(iter(devices.accelerators()), devices.HOST)
    record.execution = "virtual" if device == devices.HOST else "real"
    record.devices = {"requested": ["auto"], "used": [devices.label(device)], "output": devices.label(device)}
    os.write(stdout, record.to_json().encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
