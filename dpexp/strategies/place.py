"""``place``: each submodule on the device that a device map names, as in Accelerate's ``device_map``.

    --place 'embedding=cpu' --place 'layers.*=cuda:0' --place 'head=cuda:1'

    ids --> embedding (cpu) --transfer--> layers.0 (cuda:0) --> layers.1 (cuda:0) --transfer--> head (cuda:1)

Nothing is replicated: the devices compute one after the other. A transfer comes before a module whose
inputs are on another device. ``hybrid`` is the special case of modules on the host and modules elsewhere.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import PlaceOptions
from dpexp.config.words import listed
from dpexp.devices import HOST, is_virtual, label, place, running_on, set_tensor_device, tensor_device
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules import Transfer, Wrapper, check_no_overlap, check_not_tied, matching, rewire
from dpexp.strategies.placed import Placed
from dpexp.tensors import walk
from dpexp.timing import Timer


class Place(Strategy):
    """A device map. What it does not name is on the first device, and so are the outputs."""

    needs = Needs(devices=False, prediction=True)
    options: PlaceOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Raises ConfigError for a device map that names nothing, or splits a tied parameter."""
        first = devices[0] if devices else HOST
        check_not_tied(model, self.device_map(model, devices), first, "--place")

    def device_map(self, model: nn.Module, devices: Devices) -> dict[str, torch.device]:
        """The device of each named submodule. Raises ConfigError for unknown names or devices, or none."""
        if not self.options.place:
            names = listed([name for name, _ in model.named_children()]) or "no submodules"
            raise ConfigError(f"place needs --place NAME=DEVICE, as layers.*=cuda:0; the model has {names}")
        known = {label(device): device for device in (HOST, *devices)}
        found: dict[str, torch.device] = {}
        for entry in self.options.place:
            pattern, _, name = map(str.strip, entry.rpartition("="))
            if not pattern:
                raise ConfigError(f"--place '{entry}' is not NAME=DEVICE, as layers.*=cuda:0")
            if name not in known:
                known_names = f"there are {', '.join(known)}. --virtual N emulates cpu:0 to cpu:N-1"
                raise ConfigError(f"--place '{entry}': no device '{name}'; {known_names}")
            for module in matching(model, [pattern], "--place"):
                if module in found:
                    raise ConfigError(f"--place '{entry}': '{module}' already has a device, {found[module]}")
                found[module] = known[name]
        check_no_overlap(list(found), "--place")
        return found

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Wrap every part for its device, and the model for its outputs, in place."""
        first = devices[0] if devices else HOST
        device_map = self.device_map(model, devices)

        def wrap(name: str, child: nn.Module) -> nn.Module:
            device = device_map.get(name, first)
            return OnDevice(place(child, device), device, first, timer)

        rewire(model, device_map, wrap, first)
        used = tuple(dict.fromkeys((first, *device_map.values())))
        return Placed(Outputs(model, first, first, timer), first, first, used, timer=timer)


class OnDevice(Wrapper):
    """A module on its device, to which it moves its inputs; tensors without a mark are on ``first``."""

    def __init__(self, module: nn.Module, device: torch.device, first: torch.device, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.first = first
        self.transfer = Transfer(device, timer, first)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs ``(rows, …)`` from any device; outputs on this one."""
        if is_elsewhere((inputs, kwargs), self.device, self.first):
            inputs, kwargs = self.transfer(inputs, kwargs)
        with running_on(self.device, None):
            return set_tensor_device(self.module(*inputs, **kwargs), self.device)


class Outputs(OnDevice):
    """The model, whose outputs it moves to the device, for the loss."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Outputs ``(rows, …)`` on the first device."""
        with MarkResults() if is_virtual(self.device) else nullcontext():
            outputs = self.module(*inputs, **kwargs)
        return self.transfer(outputs) if is_elsewhere(outputs, self.device, self.first) else outputs


class MarkResults(TorchFunctionMode):
    """Marks the result of every function with the virtual device of its inputs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.compiler.is_compiling():  # a tensor of a graph has no mark; OnDevice marks the outputs
            return result
        for tensor in walk((args, kwargs)):
            device = tensor_device(tensor, HOST)
            if device != HOST:
                return set_tensor_device(result, device)
        return result


def is_elsewhere(value: Any, device: torch.device, first: torch.device) -> bool:
    """Whether a tensor of the nested value is on another device; one without a mark is on ``first``."""
    default = first if is_virtual(first) else HOST
    return any(tensor_device(tensor, default) != device for tensor in walk(value))
