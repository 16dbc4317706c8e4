"""``place``: each submodule on the device that a device map names, as in Accelerate's ``device_map``.

    --place 'embedding=cpu' --place 'layers.*=cuda:0' --place 'head=cuda:1'

    ids --> embedding (cpu) --transfer--> layers.0 (cuda:0) --> layers.1 (cuda:0) --transfer--> head (cuda:1)

Nothing is replicated: the devices work one after the other. A transfer is put before a module whose
inputs lie elsewhere. ``hybrid`` is the case that has a name: some modules on the host, the others not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpexp.config import ConfigError, PlaceOptions
from dpexp.devices import HOST, is_virtual, label, place, running_on, set_tensor_device, tensor_device
from dpexp.strategies.base import Needs, Placed, Strategy
from dpexp.strategies.wrappers import (
    Forward,
    Transfer,
    Wrapper,
    check_no_overlap,
    matching,
    place_own,
    rewire,
)
from dpexp.tensors import walk
from dpexp.timing import Timer


class Place(Strategy):
    """A device map; what it does not name goes to the first device, where the outputs come too."""

    name = "place"
    needs = Needs(devices=False, prediction=True)

    def prepare(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self.placement(model, devices)

    def placement(self, model: nn.Module, devices: Sequence[torch.device]) -> dict[str, torch.device]:
        """The device of each named submodule. Raises ConfigError for a name or device that is not there."""
        options = self.config.options
        assert isinstance(options, PlaceOptions)
        found: dict[str, torch.device] = {}
        for entry in options.place:
            pattern, sign, name = entry.rpartition("=")
            if not sign or not pattern:
                raise ConfigError(f"--place '{entry}': it is NAME=DEVICE, as layers.*=cuda:0")
            device = _device(entry, name.strip(), devices)
            for module in matching(model, [pattern.strip()], "--place"):
                if module in found:
                    raise ConfigError(
                        f"--place '{entry}': '{module}' has its device already, {found[module]}"
                    )
                found[module] = device
        check_no_overlap(list(found), "--place")
        return found

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        placement = self.placement(model, devices)

        def on_device(name: str, child: nn.Module) -> nn.Module:
            device = placement.get(name, first)
            return OnDevice(self.compiled(place(child, device)), device, first, timer)

        rewire(model, placement, on_device, lambda module: place_own(module, first))
        used = tuple(dict.fromkeys((first, *placement.values())))
        return Placed(Forward(Outputs(model, first, timer), timer), first, first, used)


def _device(entry: str, name: str, devices: Sequence[torch.device]) -> torch.device:
    known = [HOST, *devices]
    for device in known:
        if label(device) == name:
            return device
    there = ", ".join(dict.fromkeys(map(label, known)))
    raise ConfigError(
        f"--place '{entry}': no device '{name}'; there is {there}. --virtual N emulates cpu:0 to cpu:N-1"
    )


class OnDevice(Wrapper):
    """A module on its device; inputs that lie elsewhere are brought there first."""

    def __init__(self, module: nn.Module, device: torch.device, default: torch.device, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.default = default
        self.transfer = Transfer(device, timer)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if elsewhere((inputs, kwargs), self.device, self.default):
            inputs, kwargs = self.transfer(inputs, kwargs)
        with running_on(self.device, None):
            return set_tensor_device(self.module(*inputs, **kwargs), self.device)


class Outputs(Wrapper):
    """Brings the model's outputs to one device, where the loss is computed."""

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.transfer = Transfer(device, timer)

    def forward(self, *inputs: Any) -> Any:
        with Following() if is_virtual(self.device) else nullcontext():
            outputs = self.module(*inputs)
        return self.transfer(outputs) if elsewhere(outputs, self.device, self.device) else outputs


class Following(TorchFunctionMode):
    """What is computed from a marked tensor is marked alike, as real tensors know their device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in walk((args, kwargs)):
            device = tensor_device(tensor, HOST)
            if device != HOST:
                return set_tensor_device(result, device)
        return result


def elsewhere(value: Any, device: torch.device, default: torch.device) -> bool:
    """Whether a tensor of the nested value lies on another device.

    ``default`` is where tensors without a mark lie, if it is virtual; real tensors say it themselves.
    """
    default = default if is_virtual(default) else HOST
    return any(tensor_device(tensor, default) != device for tensor in walk(value))
