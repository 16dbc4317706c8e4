"""``single``: the model on one device, the reference that every other layout must equal.

batch (30) --> model on devices[0] --> outputs (30)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dpexp.devices import HOST, place
from dpexp.strategies.base import Needs, Placed, Strategy
from dpexp.strategies.wrappers import Forward
from dpexp.timing import Timer


class Single(Strategy):
    """The model on the first device, or on the host without any."""

    name = "single"
    needs = Needs(devices=False)

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        return Placed(Forward(self.compiled(place(model, device)), timer), device, device, (device,))
