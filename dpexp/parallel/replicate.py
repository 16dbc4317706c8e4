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

from dpexp.devices import physical
from dpexp.parallel.targets import Target, target

M = TypeVar("M", bound=nn.Module)
Copy = Callable[[torch.Tensor], torch.Tensor]
Table = dict[str, Any]


def replicate(module: M, devices: Sequence[Target], detach: bool = False) -> list[M]:
    """A replica of the module for each device; the first aliases it.

    With ``detach`` gradients do not flow back. Then, in eval mode, parameters of replicas that share
    the original's memory (virtual devices) are not copied either: nobody writes to them. Buffers are
    copied always, because a forward may write to them.

    Raises ValueError for lazy parameters that no batch has initialized, and RuntimeError for scripted
    modules
    that contain Python ones.
    """
    alias_all = detach and not any(part.training for part in module.modules())
    replicas = []
    for index, device in enumerate(map(target, devices)):
        parameter = _copier(device, alias=index == 0 or alias_all, detach=detach)
        buffer = _copier(device, alias=index == 0, detach=detach)
        replicas.append(_shell(module, parameter, buffer, {}, {}))
    return replicas


def _copier(device: torch.device, alias: bool, detach: bool) -> Copy:
    """How a tensor comes to the device: as a view of the original, or as a copy."""
    place = physical(device)

    def copier(tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach() if detach else tensor
        if alias and source.device == place:
            return _alias(source) if source.requires_grad else source.detach()
        return source.clone() if source.device == place else _sent(source, place)

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
        return tensor.to(device, non_blocking=True)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.source), None


def _shell(
    module: M,
    parameter: Copy,
    buffer: Copy,
    shells: dict[nn.Module, nn.Module],
    tensors: dict[int, torch.Tensor],
) -> M:
    """The module without tensors of its own, its tensors copied, its children shells as well.

    ``shells`` and ``tensors`` remember what is there already: what the original shares, it shares.
    """

    def copied(tensor: torch.Tensor, copy: Copy) -> torch.Tensor:
        if id(tensor) not in tensors:
            tensors[id(tensor)] = copy(tensor)
        return tensors[id(tensor)]

    if isinstance(module, torch.jit.ScriptModule):
        _check_scripted(module)
    replica: M = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    shells[module] = replica
    parameters, buffers, children = _tables(module, replica)
    assign = _assignment(module, replica)
    for name, child in module._modules.items():
        if child is None:
            children[name] = None
        else:
            made = shells.get(child)
            assign(
                children,
                name,
                made if made is not None else _shell(child, parameter, buffer, shells, tensors),
            )
    for name, weight in module._parameters.items():
        if weight is None:
            parameters[name] = None
        else:
            assign(replica.__dict__, name, copied(weight, parameter))
    for name, state in module._buffers.items():
        if state is None:
            buffers[name] = None
        else:
            assign(buffers, name, copied(state, buffer))
    return replica


def _tables(module: nn.Module, replica: nn.Module) -> tuple[Table, Table, Table]:
    """The replica's own tables of parameters, buffers and children. A script keeps its tables in C++."""
    if not isinstance(module, torch.jit.ScriptModule):
        replica.__dict__.update(_parameters={}, _buffers={}, _modules={})
    return replica._parameters, replica._buffers, replica._modules


def _assignment(module: nn.Module, replica: nn.Module) -> Callable[[Table, str, Any], None]:
    """How to set an attribute: ``setattr`` where the class has its own (RNNs, scripts), else at once."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        return lambda table, name, value: table.__setitem__(name, value)
    return lambda table, name, value: setattr(replica, name, value)


def _check_scripted(script: torch.jit.ScriptModule) -> None:
    """A script can be replicated whole, and so can Python modules that hold scripts; not the reverse."""
    for name, part in script.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            raise RuntimeError(
                f"cannot replicate the scripted module {script.original_name}: its submodule '{name}' is a "
                "Python module; script it as well"
            )
