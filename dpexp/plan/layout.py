"""Layout: a strategy with options, on devices that are not there, laid out and ready to step.

    one process       the emulation of a dry run: cpu:0, cpu:1, … stand for the accelerators
    ranks             this process is rank 0, and PyTorch's group ``fake`` stands for the others

The model is made on the device ``meta``, so that it needs no memory. Its layout is made there too where ranks
have parts of it: PyTorch shards along two dimensions of a mesh on ``meta``, but not under FakeTensorMode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives

from dpexp import devices
from dpexp.config.errors import ConfigError, text_of
from dpexp.config.factories import Factory
from dpexp.config.features import Features
from dpexp.config.run_config import BATCH_SIZE, MAX_VIRTUAL, RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.copies import check_not_scripted
from dpexp.data.batch import Batch
from dpexp.distributed.group import absent_ranks, split
from dpexp.engine.prediction import Emulation, model_without_data, without_the_log_of_failures
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.run_globals import run_globals
from dpexp.measurement.observe import device_map, observe
from dpexp.models import registry as models
from dpexp.plan.kernels import without_onednn
from dpexp.plan.memory import Peak
from dpexp.plan.steps import Needed, Steps
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.strategies.placed import Placed
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer


class InputError(ConfigError):
    """What was asked for cannot be read or does not belong together, whatever becomes of the layout."""


@dataclass(frozen=True)
class LaidOut:
    """A layout on tensors without data, on so many ``devices``; ``rows`` are those of a global batch."""

    prepared: Prepared
    placed: Placed
    steps: Steps
    mode: FakeTensorMode
    first: Batch
    rows: int
    devices: int

    def take(self, rows: int | None = None) -> Needed:
        """Steps with a global batch of so many rows, by default ``rows``: see ``Steps.take``."""
        return self.steps.take(self.batch(self.rows if rows is None else rows))

    def peak(self, needed: Needed) -> Peak:
        """That of the accelerator which needs most."""
        peaks = [needed.peaks[name] for name in self.accelerators if name in needed.peaks]
        return max(peaks, key=lambda each: each.bytes)

    def batch(self, rows: int) -> Batch:
        """The rows of this process of a global batch of so many, like those of the data."""
        first = self.first.changed(self.mode.from_tensor)
        own = len(split(rows, self.prepared.group.dp_size)[0])
        return replace(first if own == first.rows else first.emptied(own), global_rows=rows)

    @property
    def parts(self) -> int:
        """Into how many parts the devices split the rows of a batch."""
        prepared = self.prepared
        return prepared.strategy.row_parts(prepared.selection.used)

    @property
    def accelerators(self) -> list[str]:
        """The names that the log of storages has for the devices of this process, without the host."""
        if self.prepared.group.members:
            return [devices.label(devices.HOST)]
        used = map(devices.label, self.placed.devices)
        return [name for name in used if name != devices.label(devices.HOST)]

    def copied_bytes(self) -> dict[str, Counter[str]]:
        """By device, what it sends others of this process in a step, as the traffic of a run counts it."""
        strategy, batch = self.prepared.strategy, self.batch(self.rows)
        with self.steps.kernels():
            rows = observe(self.placed, [batch], self.steps.loss, gradients=strategy.trains)
        used = {"used": [*map(str, self.placed.devices)], "output": str(self.placed.output_device)}
        config = {"eval": not strategy.trains, **vars(strategy.options)}
        record = Record(
            strategy=strategy.name,
            config=config,
            devices=used,
            device_map=device_map(self.placed),
            shapes=rows,
        )
        sent: dict[str, Counter[str]] = {}
        for move in RecordView(record).moves:
            sent.setdefault(move.source, Counter())[move.name] += move.bytes * self.prepared.accumulate
        return sent


@contextmanager
def laid_out(
    config: RunConfig, objects: Mapping[str, Any], count: int, is_accelerator: bool = True
) -> Iterator[LaidOut]:
    """The layout of a config on so many devices; ``config.devices`` is not used.

    Raises InputError, and whatever model, layout and loss raise on tensors without data.
    """
    asked, config = config, replace(config, batch_size=BATCH_SIZE, steps=max(config.steps, config.accumulate))
    options, has_ranks = config.options, STRATEGIES[config.strategy](config.options).has_ranks
    used = 1 if has_ranks or options.uses_one_device else count
    if used > MAX_VIRTUAL:
        raise InputError(f"{count} devices of one process: a plan has at most {MAX_VIRTUAL}")
    names = ",".join(f"cuda:{index}" for index in range(used))
    config = replace(config, devices=names, virtual=None, check=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as stack:
        stack.enter_context(run_globals(config))
        stack.enter_context(without_onednn())
        group = None
        try:
            if has_ranks and isinstance(options, RankOptions):
                group = stack.enter_context(absent_ranks(options.mesh_of(count)))
            prepared = prepare(
                config, objects, one_batch=False, planned=True, group=group, build=_without_data
            )
        except ConfigError as error:
            raise InputError(text_of(error)) from error
        first = next(prepared.batches(0))  # outside the mode, where random numbers have no state
        model = model_without_data(prepared.model, mode)
        rows = prepared.batch_size if asked.batch_size == BATCH_SIZE else asked.batch_size
        if group is not None:
            prepared.group.device_mesh(devices.HOST)  # which is real
            placed = placed_without_data(prepared, model, [devices.HOST], mode)
            stack.enter_context(mode)
            # FakeTensorMode looks like a compiler to functional collectives, which then wait at once
            stack.enter_context(patch.object(_functional_collectives, "_are_we_tracing", lambda: False))
        else:
            emulation = Emulation(prepared, prepared.selection.used)
            stack.enter_context(mode)
            stack.enter_context(devices.prediction())
            stack.enter_context(emulation.mixed_devices())
            placed = emulation.place(model)
        stack.enter_context(without_the_log_of_failures())
        steps = Steps(prepared, placed, is_accelerator)
        yield LaidOut(prepared, placed, steps, mode, first, rows, count if has_ranks else used)


def _without_data(factory: Factory, features: Features | None) -> nn.Module:
    """The model on the device ``meta``; with data where its constructor reads numbers."""
    loaded = factory.load()
    if isinstance(loaded, nn.Module):
        check_not_scripted(loaded)
        factory.check_no_options(loaded)
        return loaded
    try:
        with torch.device("meta"):
            return models.build(factory, features)
    except ConfigError:
        return models.build(factory, features)


def placed_without_data(
    prepared: Prepared, model: nn.Module, used: Sequence[torch.device], mode: FakeTensorMode
) -> Placed:
    """The layout on the host and its virtual devices, made on ``meta``, then on the host without data."""
    with devices.labels_only():
        placed = prepared.strategy.lay_out(model, used, Timer())
    with mode:
        _give_storages(placed.module)
    return placed


def _give_storages(module: nn.Module) -> None:
    """``Module.to_empty``, which unties parameters, and takes what is not on ``meta`` too."""
    places = [
        (table, key, tensor)
        for part in module.modules()
        for table in (part._parameters, part._buffers)
        for key, tensor in table.items()
        if tensor is not None
    ]
    module.to_empty(device=devices.HOST)
    made: dict[int, Any] = {}
    for table, key, tensor in places:
        table[key] = made.setdefault(id(tensor), table[key])
