"""``single``: the model on one device, the reference that every other strategy must equal.

batch (30) --> model on devices[0] --> outputs (30)
"""

from torch import nn

from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Placed, Strategy
from dpexp.strategies.wrappers import Forward
from dpexp.timing import Timer


class Single(Strategy):
    """The model on the first device, or on the host."""

    name = "single"
    needs = Needs(devices=False)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        return Placed(Forward(self.compiled(place(model, device)), timer), device, device, (device,))
