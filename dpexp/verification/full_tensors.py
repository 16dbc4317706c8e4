"""Full tensors: the parameters and buffers of a layout, also those that only other ranks have."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dpexp import devices
from dpexp.training.trainer import Trainer


class FullTensors:
    """Of a trainer of which ranks may have parts of the model, as stages of a pipeline.

    Every rank must make one, and call its methods in the same order.
    """

    def __init__(self, layout: Trainer) -> None:
        self._layout = layout
        self._names = layout.parameters().keys() | layout.buffers().keys()
        self._has_stages = any(names != self._names for names in layout.group.all_gather(self._names))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the full parameters, on the host."""
        full = self._layout.full_parameters()
        return self.completed({name: each.to(devices.HOST, copy=True) for name, each in full.items()})

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers of this rank, and those that only others have."""
        return self.completed(self._layout.buffers())

    def completed(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """With what only other ranks have of their own parameters and buffers."""
        if not self._has_stages:
            return dict(own)
        everywhere = self._layout.group.complete(dict(own))
        return {
            key: tensor
            for key, tensor in everywhere.items()
            if key in own or key.partition(": ")[0] not in self._names
        }
