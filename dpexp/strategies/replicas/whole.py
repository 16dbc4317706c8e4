"""``whole``: the whole model in DataParallel.

           +--> replica 0 (devices[0]) --+
 batch ----+--> replica 1 (devices[1]) --+----> outputs on devices[0], or --output-device
scatter    +--> replica 2 (devices[2]) --+   gather
"""

from torch import nn

from dpexp.config.strategy_options import DataParallelOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.placed import Placed
from dpexp.strategies.replicas.data_parallel import (
    ReplicaSync,
    Replicating,
    data_parallel_module,
    output_device,
)
from dpexp.timing import Timer


class Whole(Replicating):
    """Every step copies the parameters to all devices, and splits the batch over them."""

    needs = Needs(devices=True, compile=False)
    options: DataParallelOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        output_device(self.options, devices)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        output = output_device(self.options, devices)
        module = data_parallel_module(place(model, first), devices, self.config, timer, output)
        used, sync = tuple(devices) or (HOST,), ReplicaSync(model, devices)
        return Placed(module, first, output, used, sync, timer=timer, forward_phase="")
