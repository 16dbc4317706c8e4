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

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from dpexp.devices import HOST, non_blocking_to, physical
from dpexp.parallel.device_ids import DeviceId, to_device

_M = TypeVar("_M", bound=nn.Module)
SMALL_BYTES = 1 << 16
"""Up to this size one node makes all copies of a tensor: faster, but it keeps all of their gradients."""


def replicate(module: _M, devices: Sequence[DeviceId], detach: bool = False) -> list[_M]:
    """A replica of the module for each device; the first aliases it.

    With ``detach`` gradients do not flow back. Then, in eval mode, parameters of replicas on virtual
    devices are not copied either, because no forward writes to them. Buffers are always copied, because a
    forward may write to them.

    Raises RuntimeError for lazy parameters that no batch has initialized.
    """
    originals = list(module.modules())
    replicas = [{id(original): _shell(original) for original in originals} for _ in devices]
    copies = _copies(originals, [to_device(device) for device in devices], detach)
    for shells, tensors in zip(replicas, copies, strict=True):
        for original in originals:
            _fill(original, shells, tensors)
    return [shells[id(module)] for shells in replicas]  # type: ignore[misc]


def _copies(
    originals: Sequence[nn.Module], devices: Sequence[torch.device], detach: bool
) -> list[dict[int, torch.Tensor]]:
    """The views or copies of all parameters and buffers for each device, by the id of the tensor.

    A replica between the first and the last puts a link (an alias) before its copy, from which the next
    replica continues. So backward adds up two gradients at a time, in the order of the replicas: the same
    bits, whichever thread computed which replica.
    """
    parameters = _by_id(original._parameters for original in originals)
    tensors = parameters | _by_id(original._buffers for original in originals)
    is_aliased = detach and not any(original.training for original in originals)
    together = [] if detach else _copies_together(tensors, devices)
    links: dict[int, torch.Tensor] = {}
    found: list[dict[int, torch.Tensor]] = []
    for index, device in enumerate(devices):
        copies = together[index - 1] if together and index else {}
        for key, tensor in tensors.items():
            if key in copies:
                continue
            source = tensor.detach() if detach else links.get(key, tensor)
            if 0 < index < len(devices) - 1 and source.requires_grad:
                links[key] = source = torch.ops.aten.alias.default(source)
            alias = index == 0 or (is_aliased and key in parameters)
            copies[key] = _copy(source, physical(device), alias)
        found.append(copies)
    return found


def _by_id(tables: Iterable[Mapping[str, torch.Tensor | None]]) -> dict[int, torch.Tensor]:
    """The tensors of all tables, a shared one once."""
    return {id(tensor): tensor for table in tables for tensor in table.values() if tensor is not None}


def _copy(tensor: torch.Tensor, destination: torch.device, alias: bool) -> torch.Tensor:
    if tensor.device != destination:
        moved: torch.Tensor = Broadcast.apply(tensor, destination)  # type: ignore[no-untyped-call]
        return moved
    if not alias:
        return tensor.clone()
    # unlike view_as, aten.alias takes a sparse gradient back
    return torch.ops.aten.alias.default(tensor) if tensor.requires_grad else tensor.detach()


def _copies_together(
    tensors: dict[int, torch.Tensor], devices: Sequence[torch.device]
) -> list[dict[int, torch.Tensor]]:
    """The copies of small tensors that get a gradient, for all virtual devices but the first.

    Empty where there are fewer than two copies, or real devices.
    """
    count = len(devices) - 1
    if count < 2 or any(physical(device) != HOST for device in devices):
        return []
    small = {key: tensor for key, tensor in tensors.items() if tensor.requires_grad and _is_small(tensor)}
    if not small:
        return []
    copies = iter(Copies.apply(count, *small.values()))  # type: ignore[no-untyped-call]
    return [dict(zip(small, copies, strict=False)) for _ in range(count)]


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.device == HOST and tensor.numel() * tensor.element_size() <= SMALL_BYTES


class Copies(torch.autograd.Function):
    """``count`` copies of all tensors, in one node; their gradients add up in the order of the copies."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.tensors = len(tensors)
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for _ in range(count) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *(_sum(grads[tensor :: ctx.tensors]) for tensor in range(ctx.tensors)))


def _sum(grads: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The sum, in order, of those that are not None; a dense one takes a sparse one, not the reverse."""
    given = [grad for grad in grads if grad is not None]
    if len(given) < 2:
        return given[0] if given else None
    total = given[1] + given[0] if given[0].is_sparse else given[0] + given[1]
    for grad in given[2:]:
        total = grad + total if total.is_sparse else total.add_(grad)
    return total


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
    if type(original)._replicate_for_data_parallel is nn.Module._replicate_for_data_parallel:
        shell = type(original).__new__(type(original))  # does the same, four times as fast
        shell.__dict__.update(original.__dict__, _is_replica=True)
    else:
        shell = original._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    shell.__dict__.update(_parameters={}, _buffers={}, _modules={})
    return shell


def _fill(original: nn.Module, shells: dict[int, nn.Module], copies: dict[int, torch.Tensor]) -> None:
    """Give the module's shell its submodules, which are shells as well, and copies of its tensors."""
    shell = shells[id(original)]
    add_module, add_parameter = shell._modules.__setitem__, shell.__dict__.__setitem__
    add_buffer = shell._buffers.__setitem__
    if type(original).__setattr__ is not nn.Module.__setattr__:  # that of RNNs does more
        add_module = add_parameter = add_buffer = functools.partial(setattr, shell)
    tables: tuple[tuple[Any, Any, Any, dict[int, Any]], ...] = (
        (original._modules, shell._modules, add_module, shells),
        (original._parameters, shell._parameters, add_parameter, copies),
        (original._buffers, shell._buffers, add_buffer, copies),
    )
    for source, registered, add, new in tables:
        for name, value in source.items():
            if value is None:
                registered[name] = None
            else:
                add(name, new[id(value)])
