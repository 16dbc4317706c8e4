"""``single``: the model on one device, the reference that every other strategy must equal.

batch (30) --> model on devices[0] --> outputs (30)
"""

from torch import nn

from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer


class Single(Strategy):
    """The model on the first device, or on the host."""

    needs = Needs(devices=False)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """The model itself, on one device."""
        device = devices[0] if devices else HOST
        return Placed(place(model, device), device, device, (device,), timer=timer)
