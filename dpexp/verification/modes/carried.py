"""Carried: the statistics of batch norms with which ranks enter their next forward.

step 1    rank 0 leaves s0         rank 1 leaves s1, of its own rows
step 2    rank 0 begins with s0    rank 1 begins with s0, which DistributedDataParallel sends, or its own s1

So they stay as the layout has left them until their module is called: then they are compared, and only then
replaced by those of the single device, with which all ranks begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp.strategies.modules.wrappers import parts
from dpexp.training.trainer import Trainer
from dpexp.verification.limits.norms import Tensors
from dpexp.verification.limits.parts import Parts
from dpexp.verification.limits.parts import parts as compared


@dataclass
class Carried:
    """``own`` is what this rank has left, ``kept`` what the single device has: that of rank 0.

    ``begun`` has how far apart the forward began from the nearer of the two.
    """

    own: Tensors = field(default_factory=dict)
    kept: Tensors = field(default_factory=dict)
    begun: dict[str, Parts] = field(default_factory=dict)

    @classmethod
    def of(cls, statistics: Tensors, kept: Tensors, called: Collection[str]) -> Carried:
        """Those of modules that this step has called, which the next one calls, too."""
        own = {name: each for name, each in statistics.items() if name.rpartition(".")[0] in called}
        return cls(own, {name: kept[name] for name in own})

    def hooks(self, layout: Trainer) -> ExitStack:
        """Compare and replace them in the first call of each module, until it closes."""
        hooks = ExitStack()
        for part in parts(layout.placed.module):
            names = {key: f"{part.name}.{key}".lstrip(".") for key in part.module._buffers}
            names = {key: name for key, name in names.items() if name in self.kept}
            if names:
                enter = partial(self._enter, names)
                hooks.enter_context(part.module.register_forward_pre_hook(enter))
        return hooks

    def _enter(self, names: Mapping[str, str], module: nn.Module, args: Any) -> None:
        for key, name in names.items():
            buffer = module._buffers[key]
            if name not in self.begun and isinstance(buffer, torch.Tensor):
                both = (compared(buffer, each[name]) for each in (self.kept, self.own))
                self.begun[name] = min(both, key=lambda each: sum(each.apart))
                buffer.copy_(self.kept[name])


def farther(tensors: Mapping[str, Parts], others: Mapping[str, Parts]) -> dict[str, Parts]:
    """Of each tensor the one of the two that is farther apart."""
    return {
        name: max(each, others.get(name, each), key=lambda one: sum(one.apart))
        for name, each in tensors.items()
    }
