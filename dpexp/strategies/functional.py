"""``functional``: ``data_parallel(module, inputs, devices)``, composed of the four primitives.

This is the function of PyTorch's tutorial, written out: read ``data_parallel`` below.
"""

from types import ModuleType
from typing import Any

from torch import nn

from dpexp import parallel
from dpexp.config import RunConfig
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Placed
from dpexp.strategies.data_parallel import Replicating, labelled, on_one_device, uses_torch
from dpexp.strategies.wrappers import Wrapper
from dpexp.timing import Timer


class Functional(Replicating):
    """Each call makes new replicas and drops them; without devices it calls the module itself."""

    name = "functional"
    needs = Needs(devices=True, compile=False)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        module = DataParallelCall(place(model, first), devices, self.config, timer)
        return Placed(module, first, first, tuple(devices) or (HOST,))


class DataParallelCall(Wrapper):
    """A module whose forward is ``data_parallel(module, inputs, devices)``."""

    def __init__(self, module: nn.Module, devices: Devices, config: RunConfig, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.replica_devices = tuple(devices)
        self.library = nn.parallel if uses_torch(config, devices) else parallel
        self.timer = timer
        self.dtype = config.autocast

    def forward(self, *inputs: Any) -> Any:
        devices, library = self.replica_devices, self.library
        return data_parallel(self.module, inputs, devices, library, self.timer, self.dtype)


def data_parallel(
    module: nn.Module,
    inputs: tuple[Any, ...],
    devices: Devices,
    library: ModuleType,
    timer: Timer,
    dtype: str,
) -> Any:
    """Compute ``module(*inputs)`` with the rows of the inputs split over the devices.

    ``library`` is ``torch.nn.parallel`` or ``dpexp.parallel``, ``dtype`` that of autocast, or empty. The
    module must be on ``devices[0]``, and so are the outputs.
    """
    if len(devices) <= 1:
        with timer.phase("forward"), on_one_device(devices):
            return module(*inputs)
    with timer.phase("replicate"):
        replicas = library.replicate(module, devices)
    with timer.phase("scatter"):
        chunks = library.scatter(inputs, devices)
    used = devices[: len(chunks)]
    with timer.phase("parallel_apply"):
        calls = labelled(replicas[: len(used)], used, timer, dtype)
        outputs = library.parallel_apply(calls, chunks, devices=used)
    with timer.phase("gather", devices[0]):
        return library.gather(outputs, devices[0])
