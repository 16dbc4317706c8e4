"""Optimizers: those of a placed model's parameters as one; clipping and accumulation of gradients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpexp.strategies.modules.wrappers import named_parameters
from dpexp.strategies.placed import Placed
from dpexp.strategies.shards import Shards


class Optimizers:
    """The optimizers of a placed model's parameters, as one.

    ``clip_norm`` limits the norm of the gradients; ``accumulate`` batches have one step, with the mean of
    their gradients. ``batches`` have come since the last step.
    """

    def __init__(
        self,
        members: Sequence[torch.optim.Optimizer],
        placed: Placed,
        clip_norm: float | None = None,
        accumulate: int = 1,
    ) -> None:
        self.members, self.clip_norm = members, clip_norm
        self.accumulate, self.batches = accumulate, 0
        self._shards, self._parameters = placed.shards, named_parameters(placed.module)

    def step(self) -> bool:
        """The step of every optimizer, if the batch is the last of those that accumulate; whether it is.

        Otherwise the gradients must stay, for backward to add to. Every rank must call this.
        """
        self.batches += 1
        if self.batches < self.accumulate:
            return False
        self.batches = 0
        if self.accumulate > 1:
            for gradient in _gradients(self._parameters).values():
                _values(gradient).div_(self.accumulate)
        if self.clip_norm is not None:
            clip(self._parameters, self._shards, self.clip_norm)
        for member in self.members:
            member.step()
        return True

    def restart(self) -> None:
        """Forget the batches since the last step, with their gradients."""
        self.batches = 0
        for parameter in self._parameters.values():
            parameter.grad = None

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Inside, no batch has come since the last step; at the end those from before have, and gradients."""
        batches, before = self.batches, {each: each.grad for each in self._parameters.values()}
        self.restart()
        yield
        self.batches = batches
        for parameter, gradient in before.items():
            parameter.grad = gradient

    def states(self) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
        """(name, parameter, what is kept of it) of the parameters of which something is kept."""
        for name, parameter in self._parameters.items():
            for member in self.members:
                state = keeper(member).state
                if parameter in state:
                    yield name, parameter, state[parameter]


def keeper(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that keeps the state: a ZeroRedundancyOptimizer has it in one of its own."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def clip(parameters: Mapping[str, nn.Parameter], shards: Shards, limit: float) -> None:
    """Scale the gradients so that the norm of all of them together is at most ``limit``."""
    gradients = _gradients(parameters)
    norm = shards.total_norm(gradients)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as in torch.nn.utils.clip_grad_norm_
    for gradient in gradients.values():
        values = _values(gradient)
        values.mul_(factor.to(values.device, values.dtype))


def _gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: each.grad for name, each in parameters.items() if each.grad is not None}


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers of a gradient that this rank has, to change in place."""
    local: Any = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    values: torch.Tensor = local._values() if local.is_sparse else local
    return values
