"""Observe: the shapes of every module call (by forward hooks), and the device of every parameter and buffer.

Modules have the names of the model as written: see ``strategies.modules``.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.record.record import Row
from dpexp.strategies.module_calls import ModuleCall, module_calls
from dpexp.strategies.modules import Part, Transfer, Wrapper, is_transparent, parts
from dpexp.strategies.placed import Loss, Placed, StepEndedError, StepObserver
from dpexp.training.preserve import preserved, uncompiled

EPOCH_LIMIT = 16
"""Of a longer epoch, this many first batches and the last one are observed: the others repeat the first."""

_Place = tuple[bool, int, int]
"""That of a call in its batch: outside before replicas, order of definition, replica."""


def _add_row(rows: list[tuple[_Place, Row]], placed: Placed, batch: int, call: ModuleCall) -> None:
    """Add the row of a call, unless a wrapper has the same one, with its place among those of the batch."""
    part, replica, device = call.part, call.replica, call.device
    wrapper = part.wrappers[-1] if part.wrappers and part.wrappers[-1].module is part.module else None
    if is_transparent(part.module) or (replica is None and wrapper is not None and not wrapper.transparent):
        return
    row: Row = {
        "batch": batch,
        "scope": "outside" if replica is None else "replica",
        "module": part.name,
        "replica": replica,
        "device": devices.label(_device_outside(placed, part.module) if device is None else device),
        "inputs": tensors.shapes(call.inputs),
        "outputs": tensors.shapes(call.outputs),
    }
    # a report computes what is moved from these, where the shapes do not show it
    if isinstance(call.module, Transfer):
        row |= call.module.moved(call.inputs)
    elif replica is not None and wrapper is not None and wrapper.replica_devices:
        row["bytes"] = _replica_bytes(call)
    rows.append(((replica is not None, call.order, replica or 0), row))


def _device_outside(placed: Placed, module: nn.Module) -> torch.device:
    """Where the outputs of a module outside of replicas are: a wrapper is where the module is in it."""
    if isinstance(module, Wrapper) and module.replica_devices:
        return placed.output_device
    while isinstance(module, Wrapper):
        module = module.module
    return devices.placed_on(module)


def _replica_bytes(call: ModuleCall) -> dict[str, int]:
    """The bytes of a replica's inputs and outputs, and of those that require a gradient."""
    sizes = {"inputs": _bytes(call.inputs), "outputs": _bytes(call.outputs)}
    if torch.is_grad_enabled():
        sizes["input_gradients"] = _bytes(call.inputs, True)
        sizes["output_gradients"] = _bytes(call.outputs, True)
    return sizes


def _bytes(value: Any, requires_grad: bool = False) -> int:
    found = (tensor for tensor in tensors.walk(value) if tensor.requires_grad or not requires_grad)
    return sum(map(size_of, found))


def observed_batches(batches: int) -> list[int]:
    """The numbers of the batches to observe in an epoch of so many."""
    return [*range(min(batches, EPOCH_LIMIT)), *([batches - 1] if batches > EPOCH_LIMIT else [])]


def observe(
    placed: Placed,
    batches: Iterable[Batch],
    loss: Loss,
    numbers: Sequence[int] | None = None,
    *,
    gradients: bool = False,
) -> list[Row]:
    """``shapes`` rows of batches, from steps that end after their forward and train nothing.

    ``numbers`` are their numbers in the epoch: by default 0, 1, …. With ``gradients`` the rows of replicas
    and transfers say which bytes require one; modules of ranks would wait for their backward then. A rank
    without rows of a batch has no rows of its calls.
    """
    rows, module = list[Row](), placed.module
    update = (lambda: None) if gradients else None  # the step ends before it
    with preserved(module, placed.devices), uncompiled(module):
        for number, batch in zip(count() if numbers is None else numbers, batches, strict=False):
            of_batch = list[tuple[_Place, Row]]()
            add = partial(_add_row, of_batch, placed, number)
            with module_calls(module, left=add), suppress(StepEndedError):
                placed.step(batch, loss, update, nullcontext(), _AFTER_FORWARD)
            if batch.rows:
                rows += [row for _, row in sorted(of_batch, key=itemgetter(0))]
    return rows


class _EndsAfterForward(StepObserver):
    def forward_ended(self, outputs: Any) -> None:
        raise StepEndedError


_AFTER_FORWARD = _EndsAfterForward()


def device_map(
    placed: Placed, states: Iterable[tuple[str, nn.Parameter, Mapping[str, Any]]] = ()
) -> list[Row]:
    """A row for each parameter and buffer: module, shape, dtype, bytes, device, devices of its replicas.

    A tied parameter has one row. The tensors that an optimizer keeps follow, as ``weight: exp_avg``:
    ``states`` are those of ``Optimizers``.
    """
    kept = {id(parameter): state for _, parameter, state in states}
    rows, of_optimizer = dict[int, Row](), list[Row]()
    for part in parts(placed.module):
        for name, parameter in part.module.named_parameters(recurse=False):
            full_name = f"{part.name}.{name}".lstrip(".")
            row = _device_map_row(part, "parameter", name, parameter)
            row |= {} if parameter.requires_grad else {"frozen": True}
            unit = placed.shards.units.get(full_name)
            row |= {} if unit is None else {"unit": unit}
            full_shape = placed.shards.full_shapes.get(full_name)
            rows.setdefault(id(parameter), row | _sharding(parameter, full_shape))
            for key, value in kept.pop(id(parameter), {}).items():
                if isinstance(value, torch.Tensor) and value.dim():
                    row = _device_map_row(part, "optimizer", f"{name}: {key}", value)
                    of_optimizer.append(row | {"replicas": []} | _sharding(value, None))
        for name, buffer in part.module.named_buffers(recurse=False):
            rows.setdefault(id(buffer), _device_map_row(part, "buffer", name, buffer))
    return [*rows.values(), *of_optimizer]


def device_of(part: Part, tensor: torch.Tensor) -> torch.device:
    """The device of a module's tensor of any shape: on the CPU the module's, which may be virtual."""
    return tensor.device if tensor.device.type != "cpu" else devices.placed_on(part.module)


def _device_map_row(part: Part, kind: str, name: str, tensor: torch.Tensor) -> Row:
    return {
        "module": part.name,
        "parameter": name,
        "kind": kind,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "bytes": tensor.numel() * tensor.element_size(),
        "device": devices.label(device_of(part, tensor)),
        "replicas": [devices.label(device) for device in part.replica_devices[1:]],
    }


def size_of(tensor: torch.Tensor) -> int:
    """The bytes of the numbers that this rank has of a tensor of any shape; of a sparse one with indices."""
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # a DTensor's mesh, too
        return sum(map(size_of, tensors.walk(inner)))
    if tensor.is_sparse:
        sparse: Any = tensor
        return size_of(sparse._indices()) + size_of(sparse._values())
    return tensor.numel() * tensor.element_size()


def _sharding(tensor: Any, full_shape: Sequence[int] | None) -> Row:
    """The keys of a row that differ for a parameter sharded over ranks; ``bytes`` are those of this rank."""
    if hasattr(tensor, "placements"):  # a DTensor
        local, shape = tensor.to_local(), list(tensor.shape)
        placement = ", ".join(map(str, tensor.placements))
    elif full_shape is not None and tuple(full_shape) != tuple(tensor.shape):
        local, shape, placement = tensor, list(full_shape), "by hand"
    else:
        return {}
    return {
        "shape": shape,
        "bytes": size_of(local),
        "local_shape": list(local.shape),
        "placement": placement,
    }
