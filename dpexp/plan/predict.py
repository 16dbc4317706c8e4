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
from torch._subclasses.fake_tensor import FakeTensorMode

from dpexp import devices
from dpexp.config import ConfigError, PlaceOptions
from dpexp.nested import map_tensors
from dpexp.observe import device_map, observe
from dpexp.record import Row
from dpexp.strategies import STRATEGIES, Strategy
from dpexp.timing import Timer

_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Prediction:
    """Rows of ``shapes`` as ``observe`` gives them, and bytes by device: parameters, gradients, outputs."""

    shapes: list[Row]
    memory: dict[str, dict[str, int]]


class PlacementError(ConfigError):
    """A layout that cannot work: the operation, the two devices, and the line of the model."""


def predict(
    model: nn.Module, strategy: Strategy, used: Iterable[torch.device], batches: Iterable[tuple[Any, ...]]
) -> Prediction:
    """The shapes of every module's calls for these batches, without computing one number.

    ``model`` and ``batches`` are real and stay as they are. Raises PlacementError where the layout mixes
    devices. What a model does with the values of a tensor cannot be predicted: ValueError.
    """
    stands = [torch.device("cpu", index) for index, _ in enumerate(used)]
    names = {str(stand): devices.label(device) for stand, device in zip(stands, used, strict=True)}
    portable = _portable(strategy, names)
    mode = FakeTensorMode()
    fake = _fake_module(model, mode)
    given = [map_tensors(mode.from_tensor, inputs) for inputs in batches]
    with mode, devices.prediction():
        placed = portable.place(fake, stands, Timer())
        try:
            shapes = observe(placed, given)
        except Exception as error:
            raise _explained(error, names) from error
        memory = _memory(device_map(placed), shapes)
    return Prediction(
        [{**row, "device": names.get(row["device"], row["device"])} for row in shapes],
        {names.get(device, device): bytes_ for device, bytes_ in memory.items()},
    )


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
    config = dataclasses.replace(strategy.config, backend="portable")
    if isinstance(config.options, PlaceOptions):
        stands = {name: stand for stand, name in reversed(names.items())}
        place = tuple(_renamed(entry, stands) for entry in config.options.place)
        config = dataclasses.replace(config, options=PlaceOptions(place))
    return STRATEGIES[config.strategy](config)


def _renamed(entry: str, stands: dict[str, str]) -> str:
    pattern, _, name = entry.rpartition("=")
    return f"{pattern}={stands.get(name.strip(), name)}"


def _memory(rows: list[Row], shapes: list[Row]) -> dict[str, dict[str, int]]:
    """Bytes by device: parameters and buffers with those of replicas, and the outputs of a batch's leaves."""
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
