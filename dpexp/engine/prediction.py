"""Prediction: what a layout would do on its devices, from a forward of tensors without data; and a dry run.

FakeTensorMode gives the shapes: it runs operations on tensors without data. It raises the real "Expected all
tensors to be on the same device" where a layout mixes two, and so ``check_devices`` predicts before a run.
Virtual devices (``cpu:i``) stand for the accelerators, so a machine without any can check
``--devices cuda:0,cuda:1``. Importing what FakeTensorMode needs takes 0.8 s.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from dpexp import devices
from dpexp.config.errors import ConfigError, describe, text_of
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.copies import copied_module
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.distributed.world import World
from dpexp.engine.observations import merged_shapes, run_facts
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.run_globals import run_globals
from dpexp.measurement.observe import EPOCH_LIMIT, device_map, observe
from dpexp.parallel import chunk_sizes
from dpexp.record.record import Record, Row
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer

_TORCH = Path(torch.__file__).parent
_DPEXP = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Prediction:
    """``shapes`` and ``device_map`` as ``observe`` returns them, and ``devices`` of a Record.

    With a ``note``, real batches ran instead of fake ones, which does not detect layouts that mix devices.
    """

    shapes: list[Row]
    device_map: list[Row]
    devices: Row
    note: str


class PlacementError(ConfigError):
    """A layout that mixes devices: the two devices, and the line of the model."""


def check_devices(prepared: Prepared) -> None:
    """Raises PlacementError where the layout mixes devices in the first batch, as accelerators would.

    Without a device map the first device stands for all: replicas on the others compute as its replica does,
    and may wait for each other, which tensors without data in one thread cannot.
    """
    used = prepared.selection.used
    try:
        with kept_globals():
            emulation = Emulation(prepared, used if prepared.strategy.needs.prediction else used[:1])
            emulation.without_data([next(prepared.batches(0))])
    except PlacementError:
        raise
    except Exception:  # of any kind: the run itself raises it, and records it
        return


def predict(prepared: Prepared, batches: Sequence[Batch]) -> Prediction:
    """The shapes of all module calls for these batches. Neither they nor the model are changed.

    Raises PlacementError where the layout mixes devices.
    """
    emulation = Emulation(prepared, prepared.selection.used)
    try:
        return emulation.without_data(batches)
    except PlacementError:
        raise
    except Exception as error:
        # of any kind: a branch on a value, or without data PyTorch's _grouped_mm, which takes bfloat16 alone
        note = f"{describe(error)} on tensors without data: real batches ran on virtual devices instead"
    return emulation.predict(copied_module(prepared.model), batches, note)


class Emulation:
    """The layout of a run on virtual devices that stand for ``used``; the last one for others of the run."""

    def __init__(self, prepared: Prepared, used: Sequence[torch.device]) -> None:
        self._prepared = prepared
        self._names = {f"cpu:{index}": devices.label(device) for index, device in enumerate(used)}
        last = len(used) - 1
        numbered = reversed([*enumerate(prepared.selection.used)])
        virtual = {devices.label(device): f"cpu:{min(index, last)}" for index, device in numbered}
        options = prepared.strategy.options.with_devices(virtual)
        # torch.nn.parallel does not know virtual devices
        self._strategy = replace(prepared.strategy, backend="portable", options=options)

    def without_data(self, batches: Sequence[Batch]) -> Prediction:
        """The prediction from tensors without data. Raises PlacementError, and what the model raises."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        model = model_without_data(self._prepared.model, mode)
        fake = [batch.changed(mode.from_tensor) for batch in batches]
        with mode, devices.prediction(), without_the_log_of_failures():
            return self.predict(model, fake)

    def predict(self, model: nn.Module, batches: Sequence[Batch], note: str = "") -> Prediction:
        """The prediction from these batches, by a model that it lays out. Raises PlacementError."""
        loss = self._prepared.data.objective.copied(model).loss
        placed = self.place(model)
        with self.mixed_devices(), devices.autocast(placed.output_device, self._prepared.autocast):
            shapes = observe(placed, batches, loss, gradients=self._strategy.trains)
        facts = {"used": [*map(str, placed.devices)], "output": str(placed.output_device)}
        names = self._names
        return Prediction(
            _renamed(shapes, names), _renamed(device_map(placed), names), _renamed(facts, names), note
        )

    def place(self, model: nn.Module) -> Placed:
        """The model, laid out on the virtual devices."""
        return self._strategy.lay_out(model, [*map(torch.device, self._names)], Timer())

    @contextmanager
    def mixed_devices(self) -> Iterator[None]:
        """Inside, PyTorch's error of a layout that mixes devices becomes a PlacementError."""
        try:
            yield
        except Exception as error:
            if message := _mixed_devices(error, self._names):
                raise PlacementError(message) from error
            raise


def model_without_data(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy whose parameters and buffers are on the device ``meta``; its other tensors are fake."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    with _FakeCopies(mode):
        return copied_module(model, memo)


class _FakeCopies(FakeCopyMode):
    """Copies of tensors are fake; of those on the device ``meta`` they are as if on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__deepcopy__ or not args[0].is_meta:
            return super().__torch_function__(func, types, args, kwargs)
        with self.fake_mode:
            args[1][id(args[0])] = torch.empty_like(args[0], device=devices.HOST)
        return args[1][id(args[0])]


@contextmanager
def without_the_log_of_failures() -> Iterator[None]:
    """FakeTensorMode logs the traceback of each operation that fails, before it raises the error."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _mixed_devices(error: Exception, names: dict[str, str]) -> str:
    message = text_of(error)
    mixed = list(dict.fromkeys(re.findall(r"\bcpu(?::\d+)?", message)))[:2]
    if isinstance(error, ValueError) or "device" not in message or len(mixed) < 2:
        return ""
    first, second = (names.get(device, device) for device in mixed)
    remedy = "put the modules that meet there on one device"
    if devices.label(devices.HOST) in mixed:
        remedy += "; a plain tensor stays on the host: make it a buffer, or on the device of an input"
    return f"this layout mixes devices {first} and {second}{_where(error)}: {remedy}"


def _where(error: Exception) -> str:
    """`` at FILE:LINE (the code)``: the innermost line of the model, which is neither torch's nor dpexp's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_dpexp = _DPEXP in path.parents and _DPEXP / "models" not in path.parents
        if _TORCH not in path.parents and not is_dpexp:
            return f" at {path.name}:{frame.lineno} ({frame.line})"
    return ""


# --- a dry run: the devices, device map and shapes of a run, without computing or writing anything -------


def dry_run(config: RunConfig) -> Record:
    """The Record of the run before it has begun, of status ``planned``. Nothing is written.

    The shapes are those of an epoch. Of several ranks the device map is that of one process. ``execution`` is
    ``planned`` for devices that this machine does not have. The note of its verification says what was not
    predicted. Raises ConfigError as a run does, and for a layout that mixes devices.
    """
    with run_globals(config):
        return _planned(config, prepare(config, one_batch=False, planned=True))


def _planned(config: RunConfig, prepared: Prepared) -> Record:
    parts = _ranks_by_part(prepared)
    prediction, shapes = _predicted(prepared, len(parts))
    record = Record(**run_facts(config, prepared) | {"status": "planned"}, device_map=prediction.device_map)
    record.devices = {"requested": list(prepared.selection.requested), **prediction.devices}
    selection, notes = prepared.selection, [prediction.note]
    by_rank = {rank: rows for ranks, rows in zip(parts, shapes, strict=True) for rank in ranks}
    if count := len(by_rank):
        selection = replace(selection, used=tuple(prepared.request.of_ranks(count)))
        names = [*map(devices.label, selection.used)]
        record.name = prepared.name_on(count)
        record.devices |= {"used": names, "output": names[0]}
        record.devices["ranks"] = [{"rank": rank, "device": name} for rank, name in enumerate(names)]
        record.shapes = merged_shapes([by_rank[rank] for rank in range(count)], names)
        notes.append(f"the device map is that of one process; {count} ranks share the batches")
    else:
        (record.shapes,) = shapes
    if selection.missing:
        missing = ", ".join(map(devices.label, dict.fromkeys(selection.missing)))
        notes.append(f"planned for {missing}, which this machine does not have")
    record.verification = {"checked": False, "note": "; ".join(filter(None, notes)) or None}
    return record


def _ranks_by_part(prepared: Prepared) -> tuple[tuple[int, ...], ...]:
    """The ranks that would compute each part of a batch, on all hosts; one part without ranks if none run."""
    options, world = prepared.strategy.options, World.of()
    if not isinstance(options, RankOptions) or options.launched_ranks is None:
        return ((),)
    return options.mesh_of(world.size if world else prepared.request.ranks_per_host()).ranks_by_dp_rank


def _predicted(prepared: Prepared, parts: int) -> tuple[Prediction, list[list[Row]]]:
    """The prediction of each size of a part, and the shapes of each part of the batches of an epoch.

    As in a run, not more than ``EPOCH_LIMIT`` batches of a size have rows: the others repeat them.
    """
    counts = prepared.batch_rows
    pieces = {rows: chunk_sizes(rows, parts) for rows in counts}
    sizes = list(dict.fromkeys(size for rows in counts for size in pieces[rows]))
    first = next(batch for batch in prepared.batches(0) if batch.rows == max(counts))
    prediction = predict(prepared, [first.sliced(slice(0, size)) for size in sizes])
    shapes: list[list[Row]] = [[] for _ in range(parts)]
    begin = 0
    for rows, count in counts.items():
        for number in range(begin, begin + min(count, EPOCH_LIMIT)):
            for part, size in enumerate(pieces[rows]):  # fewer than there are parts if the rows are few
                of_size = (row for row in prediction.shapes if row["batch"] == sizes.index(size))
                shapes[part] += [{**row, "batch": number} for row in of_size]
        begin += count
    return prediction, shapes
