"""Replicate: the module once for each device, as cheap shells around tensors.

::

    original            replica 0 (cpu:0)      replica 1 (cpu:1)
    Linear              Linear                 Linear
    ├ weight ● ◄──────── weight (an alias)      weight (a copy)
    └ bias   ● ◄──────── bias   (an alias)      bias   (a copy)
             ▲                                    │
             └──────── gradients add up ◄─────────┘

Replica 0 aliases the original, so what its forward writes into a buffer (the running statistics of
BatchNorm) stays; what the others write is lost with them. Every call makes new replicas, which reflect
an optimizer step, ``load_state_dict``, ``.data``, a new parameter or a new submodule.

A replica's parameters are plain attributes, not leaves of autograd: ``replica.parameters()`` is empty
and ``replica.zero_grad()`` warns. Hooks and plain attributes are those of the original.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import nn

from dpexp.devices import non_blocking_to
from dpexp.parallel.scatter_gather import DeviceId, to_device

_M = TypeVar("_M", bound=nn.Module)

NO_PARAMETERS = (
    "a replica has no parameters(), so that next(self.parameters()) finds none: take the device or the type "
    "from an input, or from a parameter by its name, as self.fc.weight.device; ddp has them"
)

_EMPTY_GRAD = ("argument to `grad()` cannot be empty", "grad requires non-empty inputs")
"""PyTorch's texts, of 2.13 and of 2.11."""


@contextmanager
def explained_stops() -> Iterator[None]:
    """Where PyTorch's error of a replica's forward does not say why: the cause, and the remedy."""
    try:
        yield
    except (StopIteration, RuntimeError, ValueError) as error:
        last_line, text = traceback.extract_tb(error.__traceback__)[-1].line or "", str(error)
        # PyTorch has the line in its text where it raises the error of a replica again
        is_empty = isinstance(error, StopIteration) and "parameters(" in last_line + text
        if (is_empty or any(each in text for each in _EMPTY_GRAD)) and NO_PARAMETERS not in text:
            error.args = ("\n".join([NO_PARAMETERS, *map(str, error.args)]),)
        raise


def replicate(module: _M, devices: Sequence[DeviceId], detach: bool = False) -> list[_M]:
    """A replica of the module, which is on the first device, for each device; the first aliases it.

    With ``detach`` no gradients flow back.
    """
    parts, tensors = list(module.modules()), [*module.parameters(), *module.buffers()]
    others = [to_device(device) for device in devices[1:]]
    sources = [tensor.detach() for tensor in tensors] if detach else tensors
    of_others = Copies.apply(others, *sources)  # type: ignore[no-untyped-call]
    copies = iter([*map(_alias, sources), *of_others])
    replicas: list[dict[int, Any]] = [{id(part): _shell(part) for part in parts} for _ in devices]
    for new in replicas:
        new |= {id(tensor): next(copies) for tensor in tensors}
        for part in parts:
            _fill(new[id(part)], part, new)
    return [new[id(module)] for new in replicas]


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, without the tensor's own ``grad``."""
    # unlike view_as, aten.alias takes a sparse gradient back
    return torch.ops.aten.alias.default(tensor) if tensor.requires_grad else tensor.detach()


class Copies(torch.autograd.Function):
    """All tensors on each device, in one node of autograd; their gradients add up in the order of devices."""

    @staticmethod
    def forward(ctx: Any, devices: list[torch.device], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copies of the same shapes, of all tensors on the first device, then on the second, …."""
        copies = [non_blocking_to(each, device, copy=True) for device in devices for each in tensors]
        ctx.devices = [tensor.device for tensor in tensors]
        fixed = [i for i, tensor in enumerate(tensors) if not tensor.requires_grad]
        ctx.mark_non_differentiable(*(copy for i in fixed for copy in copies[i :: len(tensors)]))
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """For each tensor the sum of its copies' gradients, in its shape; None where none has one."""
        count = len(ctx.devices)
        return (None, *(_sum(grads[i::count], device) for i, device in enumerate(ctx.devices)))


def _sum(grads: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor | None:
    """The gradients of replicas that are not None, in their order; sparse if all are."""
    given = [non_blocking_to(grad, device) for grad in grads if grad is not None]
    # a dense one takes a sparse one, not the reverse
    return reduce(lambda a, b: b + a if a.is_sparse else a + b, given) if given else None


def _shell(part: nn.Module) -> Any:
    """The module with its plain attributes and hooks, without parameters, buffers and submodules."""
    shell = type(part).__new__(type(part))
    if type(part)._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel:
        shell = part._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    vars(shell).update(
        {**vars(part), **vars(shell)}, _is_replica=True, _parameters={}, _buffers={}, _modules={}
    )
    return shell


def _fill(shell: Any, part: nn.Module, new: dict[int, Any]) -> None:
    """Give the shell of the module its submodules, which are shells as well, and copies of its tensors."""
    for table in ("_modules", "_buffers", "_parameters"):
        for name, value in vars(part)[table].items():
            if value is None or table != "_parameters":
                vars(shell)[table][name] = None if value is None else new[id(value)]
            else:
                setattr(shell, name, new[id(value)])  # a plain attribute; RNNs note it too
