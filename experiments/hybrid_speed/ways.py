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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
class Way:
    """Each ``next`` of ``steps`` trains on one batch and gives its loss. ``parameters`` begin with the table."""

    steps: Generator[Tensor]
    parameters: list[Tensor]


@dataclass(frozen=True)
class Work:
    """What all ways do: a model of this size on these batches."""

    rows: int
    hidden: int
    batches: Sequence[Batch]
    device: torch.device

    @property
    def endless_batches(self) -> Iterator[Batch]:
        return cycle(self.batches)


def parameters(model: Model) -> list[Tensor]:
    """The table, then the parameters of the dense part."""
    return [model.embedding.weight, *model.dense.parameters()]


def plain(model: Model, called: nn.Module, ids_on: torch.device, work: Work) -> Way:
    """A training loop as a script has it; ``called`` is the model or what wraps it."""

    def steps() -> Generator[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for batch in work.endless_batches:
            outputs = called(batch.inputs[0].to(ids_on))
            loss = functional.cross_entropy(outputs, batch.targets.to(outputs.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()

    return Way(steps(), parameters(model))


# --- the ways ------------------------------------------------------------------------------------


def tutorial(work: Work) -> Way:
    """The tutorial's class."""
    model = TutorialModel(work.rows, work.hidden, work.device)
    return plain(model, model, devices.HOST, work)


def dense(work: Work, sparse: bool = False) -> Way:
    """The whole model on the device."""
    model = Model(work.rows, work.hidden, sparse).to(work.device)
    return plain(model, model, work.device, work)


def sparse(work: Work) -> Way:
    """The same, with sparse gradients of the table."""
    return dense(work, sparse=True)


def accelerate(work: Work) -> Way | None:
    """Accelerate's hooks move what a submodule takes to its device. None where the package is missing."""
    try:
        from accelerate import dispatch_model
    except ImportError:
        what = "accelerate is not installed, so that its way is left out"
        print(f"{what}: pip install '.[experiments]'", file=sys.stderr)
        return None
    model = Model(work.rows, work.hidden, sparse=True)
    device_map = {"embedding": "cpu", "dense": str(work.device)}
    # with another main device it would copy the whole table there in every step
    called = dispatch_model(model, device_map, main_device="cpu", force_hooks=True)
    return plain(model, called, devices.HOST, work)


def dataparallel(work: Work) -> Way:
    """PyTorch's DataParallel over all accelerators."""
    model = Model(work.rows, work.hidden).to(work.device)
    return plain(model, nn.DataParallel(model), work.device, work)


def emulated(work: Work) -> Way | None:
    """dpexp's DataParallel over two virtual devices."""
    from dpexp.parallel import DataParallel

    if work.device != devices.HOST:
        return None
    both = devices.virtual(2)
    model = devices.place(Model(work.rows, work.hidden), both[0])
    return plain(model, DataParallel(model, both), work.device, work)


def serial(work: Work) -> Way:
    """dpexp's hybrid, a step as a run of it takes it."""
    from dpexp.timing import Timer

    prepared = hybrid(work.rows, work.hidden)
    trained = parameters(prepared.model)  # before it is placed
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    trainer = prepared.trainer(placed)

    def steps() -> Generator[Tensor]:
        for batch in work.endless_batches:
            yield trainer.step(batch).detach()

    return Way(steps(), trained)


def hybrid(rows: int, hidden: int):
    """A prepared run of dpexp, with the model of this file, on one device."""
    from dpexp.config.run_config import RunConfig
    from dpexp.engine.prepare import prepare

    config = RunConfig(
        "hybrid",
        model=f"{__file__}:Model:rows={rows},hidden={hidden}",
        data=f"random:samples={IDS}",
        batch_size=IDS,
        lr=LR,
        threads=1,
        options={"sparse": True},
        **({"devices": "1"} if devices.accelerators() else {"virtual": 1}),
    )
    return prepare(config, one_batch=False)


WAYS: Mapping[str, Callable[[Work], Way | None]] = {
    way.__name__: way for way in (tutorial, dense, sparse, accelerate, dataparallel, emulated, serial)
}


# --- measuring -----------------------------------------------------------------------------------


def work_of(rows: int, hidden: int) -> Work:
    """Uniform ids and classes; the first accelerator, or the CPU."""
    rng = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(BATCHES):
        ids = torch.randint(rows, (IDS,), generator=rng)
        batches.append(Batch((ids,), torch.randint(CLASSES, (IDS,), generator=rng), IDS, IDS))
    return Work(rows, hidden, batches, next(iter(devices.accelerators()), devices.HOST))


@dataclass(frozen=True)
class FirstSteps:
    """A way's first losses, its weights after them (rows looked up, then the dense part), the last one's seconds."""

    losses: list[float]
    weights: list[Tensor]
    step_s: float


def first_steps(way: Way, work: Work) -> FirstSteps:
    """Train on the first batches."""
    ids = torch.cat([batch.inputs[0] for batch in work.batches[:COMPARED]]).unique()
    losses, step_s = [], 0.0
    for _ in range(COMPARED):
        start = time.perf_counter()
        losses.append(float(next(way.steps)))
        step_s = time.perf_counter() - start
    table, *others = (tensor.detach() for tensor in way.parameters)
    weights = [table.index_select(0, ids.to(table.device)), *others]
    return FirstSteps(losses, [tensor.cpu().clone() for tensor in weights], step_s)


def difference(weights: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The relative norm of the difference, over all tensors together."""
    one, other = (torch.cat([each.detach().double().flatten() for each in of]) for of in (weights, others))
    return float((one - other).norm() / other.norm())


def timed(way: Way, steps: int, device: torch.device) -> float:
    """Seconds a step, the mean of several after one that does not count, from idle device to idle device."""
    next(way.steps)
    devices.synchronize([device])
    start = time.perf_counter()
    for _ in islice(way.steps, steps):
        pass
    devices.synchronize([device])
    return (time.perf_counter() - start) / steps


def measure(
    ways: Mapping[str, Way], steps: Mapping[str, int], device: torch.device
) -> dict[str, list[float]]:
    """{way: milliseconds a step, a sample for each turn} of so many steps a turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in list(ways)[:: -1 if turn % 2 else 1]:  # none always follows the same one
            found[name].append(1000 * timed(ways[name], steps[name], device))
    return found


def figures(rows: int, hidden: int, block_s: float = BLOCK_S) -> dict[str, list[float]]:
    """``metrics`` of the Record: each way's samples in ms, their ratios turn by turn, and the largest difference."""
    work = work_of(rows, hidden)
    ways = {name: way for name, make in WAYS.items() if (way := make(work)) is not None}
    first = {name: first_steps(way, work) for name, way in ways.items()}
    differences = [difference(each.weights, first["dense"].weights) for each in first.values()]
    steps = {name: min(MOST, max(1, round(block_s / each.step_s))) for name, each in first.items()}
    time_ms = measure(ways, steps, work.device)
    ratios = {
        f"{one}_over_{other}": [a / b for a, b in zip(time_ms[one], time_ms[other], strict=True)]
        for one, other in RATIOS
        if one in ways and other in ways
    }
    samples = {f"{name}_ms": [round(ms, 6) for ms in times] for name, times in time_ms.items()}
    for way in ways.values():
        way.steps.close()
    return samples | ratios | {"difference": [max(differences)]}


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
