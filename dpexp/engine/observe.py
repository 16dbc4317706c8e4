"""Observe: which shapes flow where (by hook), and what lies where (by parameter walk).

A model is watched for one epoch, forward only, and left as it was: buffers and random state are put
back. Modules are named as the model's author named them (see ``strategies.wrapping``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.record import Row
from dpexp.strategies.base import Placed
from dpexp.strategies.wrappers import Part, Wrapper, parts

EPOCH_LIMIT = 16
"""An epoch of more batches is observed by its first two and its last: the others repeat the first."""


# --- shapes --------------------------------------------------------------------------------------


class ShapeLog:
    """Collects one row a call of every module, from all replicas' threads."""

    def __init__(self, placed: Placed) -> None:
        self.batch = 0
        self._placed = placed
        self._rows: list[tuple[int, Row]] = []
        self._lock = threading.Lock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on while inside. Replicas share them with the module that they are copies of."""
        handles = []
        seen: set[int] = set()
        for order, part in enumerate(parts(self._placed.module)):
            if (isinstance(part.module, Wrapper) and part.module.transparent) or id(part.module) in seen:
                continue
            seen.add(id(part.module))
            handles.append(part.module.register_forward_hook(self._hook(order, part), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, order: int, part: Part) -> Callable[..., None]:
        wraps = isinstance(part.module, Wrapper)
        wrapped = bool(part.wrappers) and part.wrappers[-1].module is part.module
        spoken_for = wrapped and not part.wrappers[-1].transparent

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
            device, replica = devices.current_device()
            if replica is None:
                if spoken_for:  # its wrapper's row says the same
                    return
                device = self._placed.output_device if wraps and part.module.replica_devices else _home(part)
            assert device is not None
            row = {
                "batch": self.batch,
                "scope": "outside" if replica is None else "replica",
                "module": part.name,
                "replica": replica,
                "device": devices.label(device),
                "inputs": tensors.shapes((args, kwargs)),
                "outputs": tensors.shapes(outputs),
            }
            with self._lock:
                self._rows.append((order, row))

        return hook

    def rows(self) -> list[Row]:
        """Rows by batch, module in the order of the model's definition, and replica; outside first."""

        def place(entry: tuple[int, Row]) -> tuple[int, bool, int, int]:
            order, row = entry
            return (
                row["batch"],
                row["scope"] == "replica",
                order,
                -1 if row["replica"] is None else row["replica"],
            )

        return [row for _, row in sorted(self._rows, key=place)]


def _home(part: Part) -> torch.device:
    """Where a module computes: its mark; what a wrapper wraps answers for the wrapper."""
    module = part.module
    while isinstance(module, Wrapper):
        module = module.module
    return devices.placed_on(module)


def observe(placed: Placed, batches: Iterable[tuple[Any, ...]]) -> list[Row]:
    """``shapes`` rows of one epoch. ``batches`` are the model's positional arguments, batch by batch."""
    log = ShapeLog(placed)
    last: tuple[int, tuple[Any, ...]] | None = None
    with preserved(placed), torch.no_grad(), log.watching():
        for index, inputs in enumerate(batches):
            last = (index, inputs)
            if index < EPOCH_LIMIT:
                log.batch = index
                placed.module(*devices.move(inputs, placed.input_device))
        if last is not None and last[0] >= EPOCH_LIMIT:
            log.batch = last[0]
            placed.module(*devices.move(last[1], placed.input_device))
    return log.rows()


@contextmanager
def preserved(placed: Placed) -> Iterator[None]:
    """Whatever runs inside leaves the model's buffers and the random state as they were."""
    kept = [(buffer, buffer.detach().clone()) for buffer in placed.module.buffers()]
    cuda = sorted({device.index or 0 for device in placed.devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)


# --- device map ----------------------------------------------------------------------------------


def device_map(placed: Placed) -> list[Row]:
    """One row a parameter and buffer: module, shape, dtype, bytes, device, devices of its replicas."""
    rows: list[Row] = []
    seen: set[int] = set()
    for part in parts(placed.module):
        tensors: list[tuple[str, str, torch.Tensor]] = []
        tensors += [("parameter", *item) for item in part.module.named_parameters(recurse=False)]
        tensors += [("buffer", *item) for item in part.module.named_buffers(recurse=False)]
        for kind, name, tensor in tensors:
            if id(tensor) in seen:  # tied: the bytes are there once
                continue
            seen.add(id(tensor))
            rows.append(_device_map_row(part, kind, name, tensor))
    return rows


def _device_map_row(part: Part, kind: str, name: str, tensor: torch.Tensor) -> Row:
    device = tensor.device if tensor.device.type != "cpu" else devices.placed_on(part.module)
    row = {
        "module": part.name,
        "parameter": name,
        "kind": kind,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "bytes": tensor.numel() * tensor.element_size(),
        "device": devices.label(device),
        "replicas": [devices.label(each) for each in part.replica_devices[1:]],
    }
    return row | _sharded(part, tensor)


def _sharded(part: Part, tensor: torch.Tensor) -> Row:
    """What a row has of a parameter whose rows lie on several ranks: its ``bytes`` are this rank's."""
    holder: Any = tensor if hasattr(tensor, "placements") else part.module
    if hasattr(tensor, "placements"):
        local, shape = holder.to_local(), list(tensor.shape)
        placement = ", ".join(map(str, holder.placements))
    elif hasattr(part.module, "placement"):
        local, shape, placement = tensor, list(holder.full_shape), holder.placement
    else:
        return {}
    return {
        "shape": shape,
        "bytes": local.numel() * local.element_size(),
        "local_shape": list(local.shape),
        "placement": placement,
    }
