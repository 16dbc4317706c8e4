"""RngOrder: replicas that draw random numbers from one generator compute one after the other.

Every accelerator has a random number generator of its own. All virtual devices share that of the CPU, and
two replicas on one accelerator share its generator too. If such replicas drew at the same time, the order
of threads would decide who gets which numbers, and the same seed would not give the same bits. So in
training, with dropout for example, they compute in the order of the replicas::

    cpu:0  ├─ forward ─┤
    cpu:1              ├─ forward ─┤
    cpu:2                          ├─ forward ─┤
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dpexp.devices import physical

PROBABILITIES = ("p", "dropout", "dropout_p", "dropout_prob", "drop_prob", "drop_rate")
"""Attributes in which dropout layers, recurrent layers, attention and stochastic depth keep theirs."""

DRAWS = "_dpexp_draws"
"""An attribute of modules whose own forward was seen to draw random numbers."""

RANDOM_LAYERS = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def is_random_layer(layer: nn.Module) -> bool:
    """Whether the layer itself, without its submodules, draws random numbers in training.

    A layer is known by its class, or by a probability (above 0, at most 1) in one of its attributes. A
    forward that draws without either (a bare ``torch.rand``) is to be marked (``mark_drawing``).
    """
    attributes = vars(layer)
    return isinstance(layer, RANDOM_LAYERS) or any(
        isinstance(attributes.get(name), int | float) and 0 < attributes[name] <= 1 for name in PROBABILITIES
    )


def mark_drawing(model: nn.Module, names: Iterable[str]) -> None:
    """Mark the modules of these names as random, although no attribute says so."""
    for module in map(model.get_submodule, names):
        if not is_random_layer(module):
            vars(module)[DRAWS] = True


def draws_random_numbers(module: Any) -> bool:
    """Whether a layer of the module is random and in training mode.

    For a callable that is not a module, its attribute ``module`` is examined.
    """
    if not isinstance(module, nn.Module):
        module = getattr(module, "module", None)
    return isinstance(module, nn.Module) and any(
        layer.training and (is_random_layer(layer) or DRAWS in vars(layer)) for layer in module.modules()
    )


class RngOrder:
    """The order of replicas that share a generator: each one waits for the one before it."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._finished = [threading.Event() for _ in devices]
        generators = [physical(device) for device in devices]
        self._previous = [
            max((i for i in range(replica) if generators[i] == generator), default=None)
            for replica, generator in enumerate(generators)
        ]

    @contextlib.contextmanager
    def after_previous(self, replica: int) -> Iterator[None]:
        """Wait until the previous replica on the generator has finished or raised."""
        previous = self._previous[replica]
        if previous is not None:
            self._finished[previous].wait()
        try:
            yield
        finally:
            self._finished[replica].set()

    def ordered(self, task: Callable[[int], None]) -> Callable[[int], None]:
        """``task(replica)``, after the previous replica."""

        def run(replica: int) -> None:
            with self.after_previous(replica):
                task(replica)

        return run
