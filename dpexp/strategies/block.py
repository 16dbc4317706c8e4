"""``block``: only the named submodules in DataParallel, the others on the first device.

                          +--> block2, replica 0 --+
batch --> block1 (whole) -+--> block2, replica 1 --+-> block3 (whole) --> outputs
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dpexp.config import BlockOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Needs, Placed
from dpexp.strategies.data_parallel import Replicating, data_parallel_module
from dpexp.strategies.wrappers import Forward, matching, replace, submodule
from dpexp.timing import Timer


class Block(Replicating):
    """What is not wrapped sees the whole batch; each wrapped block splits and gathers it anew."""

    name = "block"
    needs = Needs(devices=True, compile=False)

    def blocks(self, model: nn.Module) -> tuple[str, ...]:
        """The names of the submodules to wrap. Raises ConfigError for one that the model does not have."""
        options = self.config.options
        assert isinstance(options, BlockOptions)
        return matching(model, options.block, "--block")

    def prepare(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        super().prepare(model, devices)
        self.blocks(model)

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        place(model, first)
        for name in self.blocks(model):
            parent, key, block = submodule(model, name, "--block")
            replace(parent, key, data_parallel_module(block, devices, self.config, timer))
        return Placed(Forward(model, timer), first, first, tuple(devices) or (HOST,))
