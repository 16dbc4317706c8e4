"""``functional``: ``data_parallel(module, inputs, devices)``, composed of the four primitives.

This is the function of PyTorch's tutorial, written out: read ``data_parallel`` below.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.devices import HOST, place, running_on
from dpexp.strategies.base import Needs, Placed
from dpexp.strategies.data_parallel import Replicating, labelled, uses_torch
from dpexp.strategies.wrappers import Wrapper
from dpexp.timing import Timer


class Functional(Replicating):
    """Replicas are made, used and forgotten inside one call; without devices the module is called."""

    name = "functional"
    needs = Needs(devices=True, compile=False)

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        library = nn.parallel if uses_torch(self.config, devices) else parallel
        module = DataParallelCall(place(model, first), devices, library, timer, self.config.autocast)
        return Placed(module, first, first, tuple(devices) or (HOST,))


class DataParallelCall(Wrapper):
    """A module whose forward is ``data_parallel(module, inputs, devices)``."""

    def __init__(
        self,
        module: nn.Module,
        places: Sequence[torch.device],
        library: ModuleType,
        timer: Timer,
        autocast_type: str,
    ) -> None:
        super().__init__()
        self.module = module
        self.places = tuple(places)
        self.library = library
        self.timer = timer
        self.autocast_type = autocast_type

    def forward(self, *inputs: Any) -> Any:
        return data_parallel(self.module, inputs, self.places, self.library, self.timer, self.autocast_type)


def data_parallel(
    module: nn.Module,
    inputs: tuple[Any, ...],
    places: Sequence[torch.device],
    library: ModuleType,
    timer: Timer,
    autocast_type: str = "",
) -> Any:
    """Compute ``module(*inputs)`` with the rows of the inputs split over the devices.

    ``library`` is ``torch.nn.parallel`` or ``dpexp.parallel``; the module must be on ``places[0]``,
    where the outputs come too.
    """
    if len(places) <= 1:
        with timer.phase("forward"), running_on(*((places[0], 0) if places else (HOST, None))):
            return module(*inputs)
    with timer.phase("replicate"):
        replicas = library.replicate(module, places)
    with timer.phase("scatter"):
        pieces = library.scatter(inputs, places)
    used = places[: len(pieces)]
    with timer.phase("parallel_apply"):
        outputs = library.parallel_apply(
            labelled(replicas[: len(used)], used, timer, autocast_type), pieces, devices=used
        )
    with timer.phase("gather", places[0]):
        return library.gather(outputs, places[0])
