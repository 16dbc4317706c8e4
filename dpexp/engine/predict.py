"""Predict: the shapes of a layout, by running it on tensors that have a device and a shape but no bytes.

PyTorch's FakeTensorMode runs every operation for its shape and device alone, and raises the real
"Expected all tensors to be on the same device" where a layout mixes two. Accelerators are stood for by
virtual devices (``cpu:i``), so that a layout for a machine can be checked on another that has none.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from dpexp import devices
from dpexp.config import ConfigError
from dpexp.engine.observe import device_map, observe
from dpexp.record import Row
from dpexp.strategies import Strategy
from dpexp.tensors import map_tensors
from dpexp.timing import Timer

_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Prediction:
    """Rows of ``shapes`` as ``observe`` gives them, and bytes of parameters and buffers by device.

    ``note`` says so where the model looks at values, which fake tensors have not: the batches were then
    run for real on emulated devices, which does not show layouts that mix devices.
    """

    shapes: list[Row]
    memory: dict[str, dict[str, int]]
    note: str = ""


class PlacementError(ConfigError):
    """A layout that cannot work: the operation, the two devices, and the line of the model."""


def predict(
    model: nn.Module, strategy: Strategy, used: Iterable[torch.device], batches: Iterable[tuple[Any, ...]]
) -> Prediction:
    """The shapes of every module's calls for these batches, without computing one number.

    ``model`` and ``batches`` are real and stay as they are. Raises PlacementError where the layout mixes
    devices.
    """
    stands = [torch.device("cpu", index) for index, _ in enumerate(used)]
    names = {str(stand): devices.label(device) for stand, device in zip(stands, used, strict=True)}
    portable = _portable(strategy, names)
    batches = list(batches)
    mode = FakeTensorMode()
    fake = _fake_module(model, mode)
    given = [map_tensors(mode.from_tensor, inputs) for inputs in batches]
    with mode, devices.prediction():
        placed = portable.place(fake, stands, Timer())
        note = ""
        try:
            shapes = observe(placed, given)
        except Exception as error:
            if not _looks_at_values(error):
                raise _explained(error, names) from error
            note = "the model looks at values: one forward was run on emulated devices instead"
    if note:
        placed = portable.place(copy.deepcopy(model), stands, Timer())
        shapes = observe(placed, batches)
    return Prediction(
        [{**row, "device": names.get(row["device"], row["device"])} for row in shapes],
        {names.get(device, device): held for device, held in _memory(device_map(placed)).items()},
        note,
    )


def _looks_at_values(error: Exception) -> bool:
    """Whether an operation needed the values of a tensor: a length to pad to, a branch taken by a number."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def _fake_module(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of the model whose parameters and buffers are fake; ties stay tied."""
    made: dict[int, Any] = {}
    for parameter in model.parameters():
        made[id(parameter)] = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
    for buffer in model.buffers():
        made[id(buffer)] = mode.from_tensor(buffer.detach())
    return copy.deepcopy(model, made)


def _portable(strategy: Strategy, names: dict[str, str]) -> Strategy:
    """The same strategy for the stand-in devices, which torch.nn.parallel does not know."""
    config = dataclasses.replace(strategy.config, backend="portable", compile=False)
    stands = {name: stand for stand, name in reversed(names.items())}
    options = config.options.with_devices(stands)
    return strategy.configured(dataclasses.replace(config, options=options))


def _memory(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Bytes by device: parameters and buffers, with those of replicas."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for device in [row["device"], *row["replicas"]]:
            kind = found.setdefault(device, {"parameters": 0, "buffers": 0})
            kind["parameters" if row["kind"] == "parameter" else "buffers"] += row["bytes"]
    return found


def _explained(error: Exception, names: dict[str, str]) -> Exception:
    """A mix of devices as a PlacementError that names the two and the model's line; others as they are."""
    message = str(error)
    mixed = re.search(r"(cpu(?::\d+)?)[^\n]*?(?:,| and )\s*(cpu(?::\d+)?)", message)
    if "device" not in message or mixed is None:
        return error
    first, second = (names.get(device, device) for device in mixed.groups())
    return PlacementError(
        f"this layout mixes devices {first} and {second}{_where(error)}: put the modules that meet there "
        "on one device"
    )


def _where(error: Exception) -> str:
    """`` at FILE:LINE (the code)``: the innermost line of the model, neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    models = _OURS / "models"
    for frame in reversed(frames):
        path = Path(frame.filename)
        if _TORCH in path.parents or (_OURS in path.parents and models not in path.parents):
            continue
        return f" at {path.name}:{frame.lineno} ({frame.line})"
    return ""
