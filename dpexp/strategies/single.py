"""``single``: the model on one device, the reference that every other strategy must equal.

batch (30) --> model on devices[0] --> outputs (30)
"""

from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer


class Single(Strategy):
    """The model on the first device, or on the host."""

    needs = Needs(devices=False)

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        if len(devices) > 1 and (self.config.virtual or self.config.devices != "auto"):
            option = "--virtual" if self.config.virtual else "--devices"
            one = 1 if self.config.virtual else devices[0]
            raise ConfigError(
                f"{option} gives {len(devices)} devices and single uses one: write {option} {one}, or choose "
                "a strategy that uses several, such as whole"
            )

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        return Placed(self.compiled(place(model, device)), device, device, (device,), timer=timer)
