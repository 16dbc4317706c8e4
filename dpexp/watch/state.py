"""State: what a forward reads besides its inputs and parameters, so that it can be computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from dpexp.data.rng import random_state, set_random_state
from dpexp.strategies.modules import child_name, named_buffers, parts

_NUMBERS = (int, float)
"""A tuple is checked several times as fast as a union; a bool is an int."""


class RandomState(NamedTuple):
    """The states of the host's random number generators, and of the accelerator in use; both are copies."""

    host: bytes
    accelerator: bytes = b""

    @classmethod
    def now(cls, kind: str) -> RandomState:
        """Those of this thread's current device, where it is of this kind."""
        if kind == "cpu":
            return cls(random_state())
        module: Any = torch.get_device_module(kind)
        return cls(random_state(), module.get_rng_state().numpy().tobytes())

    def load(self, device: torch.device) -> None:
        """Restore them; the accelerator's on this device."""
        set_random_state(self.host)
        if self.accelerator:
            state = torch.frombuffer(bytearray(self.accelerator), dtype=torch.uint8)
            module: Any = torch.get_device_module(device)
            module.set_rng_state(state, device)


@dataclass(frozen=True)
class State:
    """Random numbers, the plain ``attributes`` of each part, such as ``training``, and buffers, by name."""

    random: RandomState
    attributes: Mapping[str, Mapping[str, Any]]
    buffers: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, module: nn.Module, kind: str, copied: Callable[[torch.Tensor], torch.Tensor]) -> State:
        """That of now. ``copied`` makes a detached copy of a buffer; ``kind`` is that of the device."""
        return cls(
            RandomState.now(kind),
            {each.name: _plain(each.module) for each in parts(module)},
            {name: copied(each) for name, each in named_buffers(module).items()},
        )

    def load(self, module: nn.Module, device: torch.device) -> None:
        """Restore it, in a module with the same parts."""
        for part in parts(module):
            vars(part.module).update(self.attributes.get(part.name, {}))
            for key, buffer in part.module._buffers.items():
                kept = self.buffers.get(child_name(part.name, key))
                if buffer is not None and kept is not None:
                    buffer.data = kept.to(buffer.device, copy=True)
        self.random.load(device)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes that are numbers or flags, which a loop may change, and a forward may count in."""
    items = vars(module).items()
    return {key: each for key, each in items if isinstance(each, _NUMBERS) and key[:4] != "_is_"}
