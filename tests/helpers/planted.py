"""Layouts in one process that are wrong in one way each, for the tests of verification.

Bugs over ranks are in ``tests/verification/cases``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dpexp.config.strategy_options import SingleOptions, StrategyOptions
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.devices import HOST
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.base import Needs, Strategy
from dpexp.strategies.modules import Wrapper
from dpexp.strategies.placed import GradientSync, Placed
from dpexp.timing import Timer
from dpexp.training.optimizers import OwnOptimizer
from dpexp.verification.proof import proof_of
from dpexp.verification.result import Result
from dpexp.verification.sides import Copies

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
Change = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """Three layers, a buffer that every forward updates and one that the forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.ones(4))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)) * self.scale)))


@dataclass
class Planted(Strategy):
    """A layout on the host that ``place_wrong`` makes."""

    needs = Needs(devices=True)
    options: StrategyOptions = field(default_factory=SingleOptions)
    place_wrong: Callable[[nn.Module], Placed] = field(kw_only=True)

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        return self.place_wrong(model)


def on_host(module: nn.Module, sync: GradientSync | None = None) -> Placed:
    return Placed(module, HOST, HOST, (HOST,), sync or GradientSync())


def random_batches(*rows: int) -> list[Batch]:
    """Batches for ``Net``, the same in each call."""
    rng = torch.Generator().manual_seed(0)
    tensors = [(torch.randn(each, 5, generator=rng), torch.randn(each, 2, generator=rng)) for each in rows]
    return [Batch((inputs,), targets, len(inputs), len(inputs)) for inputs, targets in tensors]


def proof_result(
    model: nn.Module,
    lay_out: Callable[[nn.Module], Placed],
    batches: Sequence[Batch],
    loss: Any = functional.mse_loss,
    optimizer: Any = SGD,
    group: ProcessGroup | None = None,
    **options: Any,
) -> Result:
    """The result of a proof, without an optimizer of forwards only."""
    make = OwnOptimizer(optimizer) if optimizer is not None else None
    objective = Objective.of(model, loss=loss)
    return proof_of(Copies(model, lay_out, batches, objective, make, group or ProcessGroup(), **options))


class Changed(Wrapper):
    """Computes ``change(module, inputs)``; says that it splits a batch over so many devices."""

    def __init__(self, module: nn.Module, change: Change, pieces: int = 1) -> None:
        super().__init__()
        self.module, self.change = module, change
        self.replica_devices = (HOST,) * (pieces if pieces > 1 else 0)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.change(self.module, inputs)


def wrapped(name: str, change: Change, pieces: int = 1) -> Callable[[nn.Module], Placed]:
    """A layout in which this submodule (or the model) is ``Changed``."""

    def place(model: nn.Module) -> Placed:
        if not name:
            return on_host(Changed(model, change, pieces))
        model.set_submodule(name, Changed(model.get_submodule(name), change, pieces))
        return on_host(model)

    return place


def weighted(weights: Callable[[list[int]], list[float]], shards: int) -> Change:
    """Right outputs, and the gradients of each shard's rows times its weight."""

    def change(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        outputs = [module(piece) for piece in inputs.chunk(shards)]
        of_shard = zip(outputs, weights([len(output) for output in outputs]), strict=True)
        return torch.cat(
            [output.detach() + (output - output.detach()) * weight for output, weight in of_shard]
        )

    return change


def mean_of_means(rows: list[int]) -> list[float]:
    return [sum(rows) / (len(rows) * count) for count in rows]


class Caching(Wrapper):
    """Calls the model with a copy of its buffers that it has made once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.copies = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(self.module, self.copies, inputs)


@dataclass
class Scaled(GradientSync):
    """Gradients times a number; those of ``names`` only, where there are any."""

    module: nn.Module
    scale: float
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__init__()

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        super().backward(loss, batch)
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None and (not self.names or name in self.names):
                parameter.grad *= self.scale


def scaled(scale: float, *names: str) -> Callable[[nn.Module], Placed]:
    return lambda model: on_host(model, Scaled(model, scale, names))
