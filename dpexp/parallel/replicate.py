"""Replicate: the module once for each device, as cheap shells around tensors.

::

    original            replica 0 (cpu:0)      replica 1 (cpu:1)
    Linear              Linear                 Linear
    ├ weight ● ◄──────── weight (a view)        weight (a copy)
    └ bias   ● ◄──────── bias   (a view)        bias   (a copy)
             ▲                                    │
             └──────── gradients add up ◄─────────┘

Replica 0 aliases the original, so what its forward writes into a buffer (the running statistics of
BatchNorm) stays; what the others write is lost with them. Replicas are made anew at every call: an
optimizer step, ``load_state_dict``, ``.data``, a new parameter or submodule are seen by the next one.

A replica's parameters are plain attributes, not leaves of autograd: ``replica.parameters()`` is empty
and ``replica.zero_grad()`` warns. Hooks and plain attributes are the original's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from dpexp.devices import may_not_wait, physical
from dpexp.parallel.device_ids import Target, target

M = TypeVar("M", bound=nn.Module)
Copy = Callable[[torch.Tensor], torch.Tensor]


def replicate(module: M, devices: Sequence[Target], detach: bool = False) -> list[M]:
    """A replica of the module for each device; the first aliases it.

    With ``detach`` gradients do not flow back. Then, in eval mode, parameters of replicas that share
    the original's memory (virtual devices) are not copied either: nobody writes to them. Buffers are
    copied always, because a forward may write to them.

    Raises ValueError for lazy parameters that no batch has initialized, and RuntimeError for scripted
    modules that contain Python ones.
    """
    parts = list(module.modules())
    alias_all = detach and not any(part.training for part in parts)
    replicas: list[M] = []
    for index, device in enumerate(map(target, devices)):
        parameter = _copier(device, alias=index == 0 or alias_all, detach=detach)
        buffer = _copier(device, alias=index == 0, detach=detach)
        shells = {part: _shell(part) for part in parts}
        for part in parts:
            _fill(part, shells, parameter, buffer)
        replicas.append(shells[module])  # type: ignore[arg-type]
    return replicas


def _copier(device: torch.device, alias: bool, detach: bool) -> Copy:
    """How a tensor comes to the device: as a view of the original, or as a copy; once, if it is shared."""
    place = physical(device)
    done: dict[int, torch.Tensor] = {}

    def copier(tensor: torch.Tensor) -> torch.Tensor:
        key = id(tensor)
        if key not in done:
            source = tensor.detach() if detach else tensor
            if source.device != place:
                done[key] = _sent(source, place)
            elif alias:
                done[key] = _alias(source) if source.requires_grad else source.detach()
            else:
                done[key] = source.clone()
        return done[key]

    return copier


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """A view that is no leaf. Unlike ``view_as``, it takes a sparse gradient back."""
    alias: torch.Tensor = torch.ops.aten.alias(tensor)
    return alias


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    sent: torch.Tensor = Send.apply(tensor, device)  # type: ignore[no-untyped-call]
    return sent


class Send(torch.autograd.Function):
    """A tensor on another device. Unlike ``Tensor.to``, it takes a sparse gradient back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.source = tensor.device
        return tensor.to(device, non_blocking=may_not_wait(device))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.source), None


def _shell(part: nn.Module) -> nn.Module:
    """The part with its plain attributes and hooks, and without parameters, buffers and children."""
    if isinstance(part, torch.jit.ScriptModule):
        _check_scripted(part)
        script: nn.Module = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        return script
    if type(part)._replicate_for_data_parallel is nn.Module._replicate_for_data_parallel:
        shell = type(part).__new__(type(part))
        shell.__dict__.update(part.__dict__, _is_replica=True)  # the same, four times as fast
    else:
        shell = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    shell.__dict__.update(_parameters={}, _buffers={}, _modules={})
    return shell


def _fill(part: nn.Module, shells: dict[nn.Module, nn.Module], parameter: Copy, buffer: Copy) -> None:
    """Give the part's shell its children, which are shells as well, and copies of its tensors."""
    shell = shells[part]
    attributes = shell.__dict__
    at_once = type(part).__setattr__ is nn.Module.__setattr__  # RNNs and scripts do more than to set

    def put(table: dict[str, Any], name: str, value: Any) -> None:
        if at_once:
            table[name] = value
        else:
            setattr(shell, name, value)

    for name, child in part._modules.items():
        if child is None:
            shell._modules[name] = None
        else:
            put(shell._modules, name, shells[child])
    for name, weight in part._parameters.items():
        if weight is None:
            shell._parameters[name] = None
        else:
            put(attributes, name, parameter(weight))
    for name, state in part._buffers.items():
        if state is None:
            shell._buffers[name] = None
        else:
            put(shell._buffers, name, buffer(state))


def _check_scripted(script: torch.jit.ScriptModule) -> None:
    """A script can be replicated whole, and so can Python modules that hold scripts; not the reverse."""
    for name, part in script.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            raise RuntimeError(
                f"cannot replicate the scripted module {script.original_name}: its submodule '{name}' is a "
                "Python module; script it as well"
            )
