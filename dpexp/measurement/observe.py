"""Observe: the shapes of every module call (by forward hooks), and the device of every parameter and buffer.

Modules have the names of the model as written: see ``strategies.modules``.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
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
from dpexp.strategies.modules import Part, Transfer, Wrapper, is_transparent, parts
from dpexp.strategies.placed import Loss, Placed, StepEndedError, StepObserver
from dpexp.training.preserve import preserved, uncompiled

EPOCH_LIMIT = 16
"""Of a longer epoch, this many first batches and the last one are observed: the others repeat the first."""


class ShapeLog:
    """Collects a row for each call of every module, from the threads of all replicas."""

    def __init__(self, placed: Placed) -> None:
        self.batch = 0
        self._placed = placed
        self.rows: list[tuple[tuple[int, bool, int, int], Row]] = []
        """Each with its place: batch, outside before replicas, order of definition, replica."""

    def hooks(self) -> ExitStack:
        """The forward hooks, until the stack closes. Replicas share them with the module that they copy."""
        hooks, hooked = ExitStack(), set()
        for order, part in enumerate(parts(self._placed.module)):
            module = part.module
            if module not in hooked and not is_transparent(module):
                hook = partial(self._add, order, part)
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
                hooked.add(module)
        return hooks

    def _add(self, order: int, part: Part, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        device, replica = devices.current_device()
        if replica is None:
            wrapper = part.wrappers[-1] if part.wrappers else None
            if wrapper is not None and wrapper.module is module and not wrapper.transparent:
                return  # the wrapper has the row
            is_replicated = isinstance(module, Wrapper) and bool(module.replica_devices)
            while isinstance(module, Wrapper):  # it is where the module is that it wraps
                module = module.module
            device = self._placed.output_device if is_replicated else devices.placed_on(module)
        assert device is not None
        row = {
            "batch": self.batch,
            "scope": "outside" if replica is None else "replica",
            "module": part.name,
            "replica": replica,
            "device": devices.label(device),
            "inputs": tensors.shapes((args, kwargs)),
            "outputs": tensors.shapes(outputs),
            **_communication(part, replica, module, (args, kwargs), outputs),
        }
        self.rows.append(((self.batch, replica is not None, order, replica or 0), row))


def _communication(part: Part, replica: int | None, module: nn.Module, inputs: Any, outputs: Any) -> Row:
    """The keys of a row from which a report computes what is moved, where the shapes do not show it.

    ``bytes`` of a replica's inputs and outputs, and of those that require a gradient; ``moved`` by a transfer
    from each device, and ``moved_back`` as gradients.
    """
    if isinstance(module, Transfer):
        return module.moved(inputs)
    wrapper = part.wrappers[-1] if part.wrappers else None
    if (
        replica is not None
        and wrapper is not None
        and wrapper.replica_devices
        and wrapper.module is part.module
    ):
        counts = {"inputs": _bytes(inputs), "outputs": _bytes(outputs)}
        gradients = {"input_gradients": _bytes(inputs, True), "output_gradients": _bytes(outputs, True)}
        return {"bytes": counts | (gradients if torch.is_grad_enabled() else {})}
    return {}


def _bytes(value: Any, requires_grad: bool = False) -> int:
    found = (tensor for tensor in tensors.walk(value) if tensor.requires_grad or not requires_grad)
    return sum(map(size_of, found))


def observed(batches: int) -> list[int]:
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
    log, module = ShapeLog(placed), placed.module
    update = (lambda: None) if gradients else None  # the step ends before it
    with preserved(module, placed.devices), uncompiled(module), log.hooks():
        for log.batch, batch in zip(count() if numbers is None else numbers, batches, strict=False):
            before = len(log.rows)
            with suppress(StepEndedError):
                placed.step(batch, loss, update, nullcontext(), _AFTER_FORWARD)
            if not batch.rows:
                del log.rows[before:]
    return [row for _, row in sorted(log.rows, key=itemgetter(0))]


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
    """The device of a tensor that a module has: on the CPU the module's, which may be virtual."""
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


def local_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the numbers of a tensor: this rank's shard, or indices and values."""
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # a DTensor's mesh, too
        return [part for each in tensors.walk(inner) for part in local_parts(each)]
    if tensor.is_sparse:
        sparse: Any = tensor
        return [sparse._indices(), sparse._values()]
    return [tensor]


def size_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's numbers on this rank."""
    return sum(part.numel() * part.element_size() for part in local_parts(tensor))


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
