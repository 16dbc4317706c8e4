"""``functional``: ``data_parallel(module, inputs, devices)``, composed of the four primitives.

This is the function of PyTorch's tutorial, written out: read ``DataParallelCall.forward`` below.
"""

from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config.strategy_options import DataParallelOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.modules.wrappers import Wrapper
from dpexp.strategies.placed import Placed
from dpexp.strategies.replicas.data_parallel import (
    ReplicaSync,
    Replicating,
    labelled,
    on_one_device,
    output_device,
    uses_torch,
)
from dpexp.timing import Timer


class Functional(Replicating):
    """Each call makes new replicas and drops them; without devices it calls the module itself."""

    needs = Needs(devices=True, compile=False)
    options: DataParallelOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        output_device(self.options, devices)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        output = output_device(self.options, devices)
        library = nn.parallel if uses_torch(self.config.backend, devices) else parallel
        module = DataParallelCall(place(model, first), devices, library, timer, output)
        used, sync = tuple(devices) or (HOST,), ReplicaSync(model, devices)
        return Placed(module, first, output, used, sync, timer=timer, forward_phase="")


class DataParallelCall(Wrapper):
    """A module whose forward is ``data_parallel(module, inputs, devices, output)``.

    The rows of the inputs are split over the devices. The module is on the first. ``library`` has the
    primitives.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: Devices,
        library: Any,
        timer: Timer,
        output: torch.device,
    ) -> None:
        super().__init__()
        self.module = module
        self.replica_devices = tuple(devices)
        self.output = output
        self.library = library
        self.timer = timer

    def forward(self, *inputs: Any) -> Any:
        devices, library, phase = self.replica_devices, self.library, self.timer.phase
        if len(devices) <= 1:
            with phase("forward"), on_one_device(devices):
                return self.module(*inputs)
        with phase("replicate"):
            replicas = library.replicate(self.module, devices)
        with phase("scatter"):
            chunks = library.scatter(inputs, devices)
        used = devices[: len(chunks)]
        with phase("parallel_apply"):
            calls = labelled(replicas[: len(used)], used, self.timer)
            outputs = library.parallel_apply(calls, chunks, devices=used)
        with phase("gather", self.output):
            return library.gather(outputs, self.output)
