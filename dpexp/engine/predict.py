"""Predict: the shapes of a layout, from FakeTensorMode, which runs operations on tensors without data.

It raises the real "Expected all tensors to be on the same device" where a layout mixes two. Virtual devices
(``cpu:i``) stand for the accelerators, so a machine without any can check a layout.
"""

import copy
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)

from dpexp import devices
from dpexp.config import ConfigError
from dpexp.engine.observe import device_map, observe
from dpexp.engine.prepare import Prepared
from dpexp.record import Row
from dpexp.strategies import Strategy
from dpexp.tensors import map_tensors
from dpexp.timing import Timer

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Raised for an operation that needs the values of a tensor: a length to pad to, a branch on a number."""

_TORCH = Path(torch.__file__).parent
_DPEXP = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Prediction:
    """Rows of ``shapes`` as ``observe`` returns them, and bytes of parameters and buffers by device.

    With a ``note``, real batches ran instead of fake ones, which does not detect layouts that mix devices.
    """

    shapes: list[Row]
    memory: dict[str, dict[str, int]]
    note: str = ""


class PlacementError(ConfigError):
    """A layout that mixes devices: the two devices, and the line of the model."""


def predict(prepared: Prepared, batches: Sequence[tuple[Any, ...]]) -> Prediction:
    """The shapes of all module calls for these inputs. Neither they nor the model are changed.

    Raises PlacementError where the layout mixes devices.
    """
    names = {f"cpu:{index}": devices.label(device) for index, device in enumerate(prepared.selection.used)}
    virtual = [torch.device(name) for name in names]
    portable, mode = _portable(prepared.strategy, names), FakeTensorMode()
    with FakeCopyMode(mode):
        fake = copy.deepcopy(prepared.model)
    fake_batches = [map_tensors(mode.from_tensor, inputs) for inputs in batches]
    note = ""
    with mode, devices.prediction():
        placed = portable.place(fake, virtual, Timer())
        try:
            shapes = observe(placed, fake_batches)
        except _NEEDS_VALUES:
            note = "the model looks at values: real batches ran on virtual devices instead"
        except Exception as error:
            message = _mixed_devices(error, names)
            if not message:
                raise
            raise PlacementError(message) from error
    if note:
        placed = portable.place(copy.deepcopy(prepared.model), virtual, Timer())
        shapes = observe(placed, batches)
    return Prediction(
        [{**row, "device": names.get(row["device"], row["device"])} for row in shapes],
        {names.get(device, device): size for device, size in _memory(device_map(placed)).items()},
        note,
    )


def _portable(strategy: Strategy, names: dict[str, str]) -> Strategy:
    """The same strategy for virtual devices, which torch.nn.parallel does not know."""
    virtual = {name: stand_in for stand_in, name in reversed(names.items())}
    config = replace(strategy.config, backend="portable", compile=False)
    return strategy.configured(replace(config, options=config.options.with_devices(virtual)))


def _memory(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Bytes by device: parameters and buffers, with those of replicas."""
    memory: dict[str, dict[str, int]] = {}
    for row in rows:
        for device in [row["device"], *row["replicas"]]:
            sizes = memory.setdefault(device, {"parameters": 0, "buffers": 0})
            sizes[f"{row['kind']}s"] += row["bytes"]
    return memory


def _mixed_devices(error: Exception, names: dict[str, str]) -> str:
    """The message for an operation on two devices; empty for any other error."""
    message = str(error)
    mixed = re.search(r"(cpu(?::\d+)?)[^\n]*?(?:,| and )\s*(cpu(?::\d+)?)", message)
    if "device" not in message or mixed is None:
        return ""
    first, second = (names.get(device, device) for device in mixed.groups())
    return (
        f"this layout mixes devices {first} and {second}{_where(error)}: put the modules that meet there "
        "on one device"
    )


def _where(error: Exception) -> str:
    """`` at FILE:LINE (the code)``: the innermost line of the model, which is neither torch's nor dpexp's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_dpexp = _DPEXP in path.parents and _DPEXP / "models" not in path.parents
        if _TORCH not in path.parents and not is_dpexp:
            return f" at {path.name}:{frame.lineno} ({frame.line})"
    return ""
