"""Dry run: devices, device map, batch splits and shapes of a run, without computing or writing anything.

``predict`` gets the shapes from FakeTensorMode, which runs operations on tensors without data. It raises the
real "Expected all tensors to be on the same device" where a layout mixes two. Virtual devices (``cpu:i``)
stand for the accelerators, so a machine without any can check ``--devices cuda:0,cuda:1``.
"""

from __future__ import annotations

import copy
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)

from dpexp import devices
from dpexp.config.errors import ConfigError, describe, text_of
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import StrategyOptions
from dpexp.data.batch import Batch
from dpexp.distributed.devices import DeviceRequest
from dpexp.distributed.world import World
from dpexp.engine.prepare import Prepared, prepare
from dpexp.measurement.observe import device_map, observe
from dpexp.measurement.predicted_work import predicted_work
from dpexp.parallel import chunk_sizes
from dpexp.record.record import Row
from dpexp.strategies.modules import Wrapper, joined, parts
from dpexp.strategies.placed import Loss, Placed
from dpexp.tensors import map_tensors
from dpexp.timing import Timer

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Raised for an operation that needs the values of a tensor: a length to pad to, a branch on a number."""

_TORCH = Path(torch.__file__).parent
_DPEXP = Path(__file__).resolve().parents[1]


def dry_run(config: RunConfig, *, with_work: bool = False) -> Row:
    """Predict an epoch of the run. Raises ConfigError as a run does, and for a layout that mixes devices.

    As in a Record: name, execution, config, devices, device_map. ``batches``: how many an epoch has, by their
    rows. ``splits``: how they are split over replicas, for each wrapped module, or over ranks. ``shapes`` of
    a full batch and the last one of an epoch; ``memory``: bytes of parameters and buffers by device.
    ``note``: what was not predicted.
    ``with_work`` adds ``work``, the floating-point operations of a step, where they can be predicted.
    """
    prepared = prepare(config, one_batch=False, planned=True)
    counts = prepared.batch_rows
    first = next(batch for batch in prepared.batches(0) if batch.rows == max(counts))
    batches = [first.sliced(slice(0, rows)) for rows in counts]
    prediction = predict(prepared, batches, with_work=with_work)
    request = DeviceRequest(config.devices, config.virtual, config.options, planned=True)
    ranks, notes = _ranks(request), [prediction.note]
    selection, used, name = prepared.selection, prediction.devices, prepared.name
    if ranks > 1:
        selection = replace(selection, used=tuple(request.of_ranks(ranks)))
        used, name = {**used, "used": [*map(devices.label, selection.used)]}, prepared.name_on(ranks)
        notes.append(f"device map and shapes are those of one process; {ranks} ranks share its batches")
    if selection.missing:
        names = ", ".join(map(devices.label, dict.fromkeys(selection.missing)))
        notes.append(f"planned for {names}, which this machine does not have")
    return {
        "name": name,
        "execution": prepared.execution,
        "config": config.to_dict(),
        "devices": {"requested": list(selection.requested), **used},
        "device_map": prediction.device_map,
        "batches": counts,
        "splits": _splits(prediction, _rank_labels(config.options, ranks), counts),
        "shapes": prediction.shapes,
        "memory": prediction.memory,
        "note": "; ".join(filter(None, notes)),
        **({"work": prediction.work} if with_work else {}),
    }


def _ranks(request: DeviceRequest) -> int:
    """How many ranks would run, on all hosts; 0 for a strategy without a launcher."""
    if request.options.launch_options is None:
        return 0
    world = World.of()
    return world.size if world is not None else request.ranks_per_host()


def _rank_labels(options: StrategyOptions, ranks: int) -> list[str]:
    """The ranks that compute each part of a batch, as text."""
    of_ranks = options.rank_options
    if of_ranks is None or not ranks:
        return []
    together = of_ranks.mesh_of(ranks).ranks_by_dp_rank
    return [f"rank{'s' * (len(each) > 1)} {'+'.join(map(str, each))}" for each in together]


def _splits(prediction: Prediction, ranks: list[str], counts: dict[int, int]) -> list[Row]:
    """How batches are split, over ``ranks`` too; ``counts`` is how many batches an epoch has of each size."""
    places = [*prediction.replicated, ("", ranks)]
    splits = []
    for name, labels in places:
        for rows, batches in counts.items() if labels else ():
            pieces = chunk_sizes(rows, len(labels))  # fewer than there are labels if the rows are few
            split = {"module": name, "rows": rows, "batches": batches, "pieces": pieces}
            splits.append(split | {"devices": labels[: len(pieces)]})
    return splits


@dataclass(frozen=True)
class Prediction:
    """``shapes`` and ``device_map`` as ``observe`` returns them, and ``devices`` of a Record.

    ``replicated``: the devices of each wrapper that makes replicas. With a ``note``, real batches ran instead
    of fake ones, which does not detect layouts that mix devices. ``work`` is as in a Record, or empty.
    """

    shapes: list[Row]
    device_map: list[Row]
    devices: Row
    replicated: list[tuple[str, list[str]]]
    note: str = ""
    work: Row = field(default_factory=dict)

    @property
    def memory(self) -> dict[str, dict[str, int]]:
        """Bytes of parameters and buffers by device, with those of replicas."""
        memory: dict[str, dict[str, int]] = {}
        for row in self.device_map:
            for device in [row["device"], *row["replicas"]]:
                sizes = memory.setdefault(device, {"parameters": 0, "buffers": 0})
                sizes[f"{row['kind']}s"] += row["bytes"]
        return memory


class PlacementError(ConfigError):
    """A layout that mixes devices: the two devices, and the line of the model."""


def predict(prepared: Prepared, batches: Sequence[Batch], *, with_work: bool = False) -> Prediction:
    """The shapes of all module calls for these batches. Neither they nor the model are changed.

    Raises PlacementError where the layout mixes devices.
    """
    names = {f"cpu:{index}": devices.label(device) for index, device in enumerate(prepared.selection.used)}
    virtual = [torch.device(name) for name in names]
    mode, config = FakeTensorMode(), prepared.config
    options = config.options.with_devices({name: device for device, name in reversed(names.items())})
    # torch.nn.parallel does not know virtual devices
    portable = replace(prepared.strategy, backend="portable", compile=False, options=options)
    with FakeCopyMode(mode):
        fake = copy.deepcopy(prepared.model)
    loss = prepared.data.objective.of(fake).loss
    fake_batches = [_without_data(batch, mode) for batch in batches]
    note, work = "", Row()
    with mode, devices.prediction(), _without_the_log_of_failures():
        placed = portable.place(fake, virtual, Timer())
        try:
            shapes = _observed(placed, fake_batches, loss, config)
        except _NEEDS_VALUES:
            note = "the model looks at values: real batches ran on virtual devices instead"
        except Exception as error:
            message = _mixed_devices(error, names, placed)
            if message:
                raise PlacementError(message) from error
            # it need not be true of the run: without data, PyTorch's _grouped_mm takes bfloat16 alone
            note = f"{describe(error)} on tensors without data: real batches ran on virtual devices instead"
        if with_work and not note:
            work = predicted_work(placed, fake_batches[0], loss, trains=not config.eval)
    if note:
        model = copy.deepcopy(prepared.model)
        placed = portable.place(model, virtual, Timer())
        shapes = _observed(placed, batches, prepared.data.objective.of(model).loss, config)
    return replace(_renamed(placed, shapes, names, note), work=work)


def _observed(placed: Placed, batches: Sequence[Batch], loss: Loss, config: RunConfig) -> list[Row]:
    with devices.autocast(placed.output_device, config.autocast):
        return observe(placed, batches, loss, gradients=not config.eval)


@contextmanager
def _without_the_log_of_failures() -> Iterator[None]:
    """FakeTensorMode logs the traceback of each operation that fails, before it raises the error."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _without_data(batch: Batch, mode: FakeTensorMode) -> Batch:
    inputs, targets = map_tensors(mode.from_tensor, (batch.inputs, batch.targets))
    return replace(batch, inputs=inputs, targets=targets)


def _renamed_call(row: Row, name: Callable[[str], str]) -> Row:
    """A row of shapes with the names of other devices, of those that a transfer moves from, too."""
    moved: Row = {
        key: {name(device): count for device, count in row[key].items()}
        for key in ("moved", "moved_back")
        if key in row
    }
    return {**row, "device": name(row["device"]), **moved}


def _renamed(placed: Placed, shapes: list[Row], names: dict[str, str], note: str) -> Prediction:
    """The prediction with the names of the devices that the virtual ones stand for."""

    def name(device: torch.device | str) -> str:
        return names.get(str(device), str(device))

    wrappers = [(part.name, part.module) for part in parts(placed.module) if isinstance(part.module, Wrapper)]
    return Prediction(
        [_renamed_call(row, name) for row in shapes],
        [
            {**row, "device": name(row["device"]), "replicas": [*map(name, row["replicas"])]}
            for row in device_map(placed)
        ],
        {"used": [*map(name, placed.devices)], "output": name(placed.output_device)},
        [(part, [*map(name, wrapper.replica_devices)]) for part, wrapper in wrappers],
        note,
    )


def _mixed_devices(error: Exception, names: dict[str, str], placed: Placed) -> str:
    """The message for an operation on two devices; empty for any other error."""
    message = text_of(error)
    found = list(dict.fromkeys(re.findall(r"\bcpu(?::\d+)?", message)))
    if "device" not in message or len(found) < 2:
        return ""
    first, second = (names.get(device, device) for device in found[:2])
    where = _where(error)
    remedy = "put the modules that meet there on one device"
    if devices.label(devices.HOST) in found[:2]:
        plain = [name for name in _left_on_host(placed) if f".{name.rpartition('.')[2]}" in where]
        if plain:
            make = f"register_buffer('{plain[0].rpartition('.')[2]}', …)"
            remedy = f"'{plain[0]}' is a plain tensor, which stays on the host: make it a buffer with {make}"
        elif devices.HOST not in placed.devices:
            remedy = "a tensor that is made there needs device=, as that of an input (device=x.device)"
    return f"this layout mixes devices {first} and {second}{where}: {remedy}"


def _left_on_host(placed: Placed) -> list[str]:
    """The plain tensors that modules on other devices keep, by the names of their attributes."""
    return [
        joined(part.name, key)
        for part in parts(placed.module)
        if devices.placed_on(part.module) != devices.HOST
        for key, value in vars(part.module).items()
        if isinstance(value, torch.Tensor) and value.device == devices.HOST
    ]


def _where(error: Exception) -> str:
    """`` at FILE:LINE (the code)``: the innermost line of the model, which is neither torch's nor dpexp's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_dpexp = _DPEXP in path.parents and _DPEXP / "models" not in path.parents
        if _TORCH not in path.parents and not is_dpexp:
            return f" at {path.name}:{frame.lineno} ({frame.line})"
    return ""
