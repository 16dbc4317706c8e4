"""RngOrder: replicas that draw random numbers from one generator compute one after the other.

Every accelerator has a random generator of its own, but all virtual devices draw from the CPU's, and so do
two replicas on one accelerator. Drawing at the same time, who gets which numbers would be chance, and the
same seed would not give the same bits. So in training, with dropout for example, such replicas take turns::

    cpu:0  ├─ forward ─┤
    cpu:1              ├─ forward ─┤
    cpu:2                          ├─ forward ─┤

Layers are known by their class or by a probability that they keep in an attribute. A forward that draws
without either (a bare ``torch.rand``) is not seen.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dpexp.devices import physical

PROBABILITIES = ("p", "dropout", "dropout_p", "dropout_prob", "drop_prob", "drop_rate")
"""Attributes in which dropout layers, recurrent layers, attention and stochastic depth keep theirs."""

RANDOM_LAYERS = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def draws_random_numbers(module: Any) -> bool:
    """Whether a layer of the module draws random numbers in its forward as it is set now.

    A callable that keeps its module in the attribute ``module`` is seen through.
    """
    if not isinstance(module, nn.Module):
        module = getattr(module, "module", None)
    return isinstance(module, nn.Module) and any(part.training and _draws(part) for part in module.modules())


def _draws(layer: nn.Module) -> bool:
    kept = vars(layer)
    return isinstance(layer, RANDOM_LAYERS) or any(
        isinstance(kept.get(name), int | float) and kept[name] > 0 for name in PROBABILITIES
    )


class RngOrder:
    """Who has to be done before a replica begins: the one before it on the same physical device."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._done = [threading.Event() for _ in devices]
        places = [physical(device) for device in devices]
        self._before = [
            max((i for i in range(replica) if places[i] == place), default=None)
            for replica, place in enumerate(places)
        ]

    @contextlib.contextmanager
    def turn(self, replica: int) -> Iterator[None]:
        """Wait for the turn of the replica; when it is done, or has raised, it is the next one's."""
        before = self._before[replica]
        if before is not None:
            self._done[before].wait()
        try:
            yield
        finally:
            self._done[replica].set()
