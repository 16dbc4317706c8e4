"""Replicate: the module once for each device, as cheap shells around tensors.

::

    original            replica 0 (cpu:0)      replica 1 (cpu:1)
    Linear              Linear                 Linear
    ├ weight ● ◄──────── weight (a view)        weight (a copy)
    └ bias   ● ◄──────── bias   (a view)        bias   (a copy)
             ▲                                    │
             └──────── gradients add up ◄─────────┘

Replica 0 aliases the original, so what its forward writes into a buffer (the running statistics of
BatchNorm) stays; what the others write is lost with them. Every call makes new replicas, which reflect
an optimizer step, ``load_state_dict``, ``.data``, a new parameter or a new submodule.

A replica's parameters are plain attributes, not leaves of autograd: ``replica.parameters()`` is empty
and ``replica.zero_grad()`` warns. Hooks and plain attributes are those of the original.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from dpexp.devices import non_blocking_to, physical
from dpexp.parallel.device_ids import DeviceId, to_device

M = TypeVar("M", bound=nn.Module)
Copy = Callable[[torch.Tensor], torch.Tensor]


def replicate(module: M, devices: Sequence[DeviceId], detach: bool = False) -> list[M]:
    """A replica of the module for each device; the first aliases it.

    With ``detach`` gradients do not flow back. Then, in eval mode, parameters of replicas on virtual
    devices are not copied either, because no forward writes to them. Buffers are always copied, because a
    forward may write to them.

    Raises ValueError for lazy parameters that no batch has initialized, and RuntimeError for scripted
    modules that contain Python ones.
    """
    originals = list(module.modules())
    alias_all = detach and not any(original.training for original in originals)
    replicas: list[M] = []
    links: dict[int, torch.Tensor] = {}
    for index, device in enumerate(map(to_device, devices)):
        is_between = 0 < index < len(devices) - 1
        copy_parameter = _copier(device, links, is_between, alias=index == 0 or alias_all, detach=detach)
        copy_buffer = _copier(device, links, is_between, alias=index == 0, detach=detach)
        shells = {original: _shell(original) for original in originals}
        for original in originals:
            _fill(original, shells, copy_parameter, copy_buffer)
        replicas.append(shells[module])  # type: ignore[arg-type]
    return replicas


def _copier(
    device: torch.device, links: dict[int, torch.Tensor], is_between: bool, alias: bool, detach: bool
) -> Copy:
    """A function from a tensor to its view or copy on the device; a shared tensor is copied once.

    A replica between the first and the last puts a link (an alias) before its copy, from which the next
    replica goes on. So backward adds up two gradients at a time, in the order of the replicas: the same bits,
    whichever thread computed which replica.
    """
    destination = physical(device)
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        key = id(tensor)
        if key not in copies:
            source = tensor.detach() if detach else links.get(key, tensor)
            if is_between and source.requires_grad:
                links[key] = source = torch.ops.aten.alias.default(source)
            if source.device != destination:
                copies[key] = Broadcast.apply(source, destination)  # type: ignore[no-untyped-call]
            elif alias:  # unlike view_as, aten.alias takes a sparse gradient back
                copies[key] = (
                    torch.ops.aten.alias.default(source) if source.requires_grad else source.detach()
                )
            else:
                copies[key] = source.clone()
        return copies[key]

    return copy


class Broadcast(torch.autograd.Function):
    """A tensor on another device. Unlike ``Tensor.to``, it takes a sparse gradient back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.source = tensor.device
        return non_blocking_to(tensor, device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.source), None


def _shell(original: nn.Module) -> nn.Module:
    """The module with its plain attributes and hooks, without parameters, buffers and submodules."""
    if isinstance(original, torch.jit.ScriptModule):
        _check_scripted(original)
        script: nn.Module = original._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        return script
    if type(original)._replicate_for_data_parallel is nn.Module._replicate_for_data_parallel:
        shell = type(original).__new__(type(original))
        shell.__dict__.update(original.__dict__, _is_replica=True)  # the same, four times as fast
    else:
        shell = original._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    shell.__dict__.update(_parameters={}, _buffers={}, _modules={})
    return shell


def _fill(
    original: nn.Module, shells: dict[nn.Module, nn.Module], copy_parameter: Copy, copy_buffer: Copy
) -> None:
    """Give the module's shell its submodules, which are shells as well, and copies of its tensors."""
    shell = shells[original]
    is_plain = type(original).__setattr__ is nn.Module.__setattr__  # that of RNNs and scripts does more
    entries: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any], Callable[[Any], Any]], ...] = (
        (original._modules, shell._modules, shell._modules, shells.__getitem__),
        (original._parameters, shell._parameters, shell.__dict__, copy_parameter),
        (original._buffers, shell._buffers, shell._buffers, copy_buffer),
    )
    for source, registered, destination, copy in entries:
        for name, value in source.items():
            if value is None:
                registered[name] = None
            elif is_plain:
                destination[name] = copy(value)
            else:
                setattr(shell, name, copy(value))


def _check_scripted(script: torch.jit.ScriptModule) -> None:
    """A script can be replicated, and so can Python modules that contain scripts; not the reverse."""
    for name, part in script.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            raise RuntimeError(
                f"cannot replicate the scripted module {script.original_name}: its submodule '{name}' is a "
                "Python module; script it as well"
            )
