"""Prepared: a run that can start, as plain values. No config comes after it.

RunConfig --prepare--> Prepared: layout, devices, model, data, optimizer, schedule --> passes
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice

import torch
from torch import nn

from dpexp import devices
from dpexp.config.factories import Factory
from dpexp.data.batch import Batch
from dpexp.data.dataset import Dataset
from dpexp.distributed.devices import DeviceRequest, DeviceSelection
from dpexp.distributed.group import ProcessGroup
from dpexp.measurement.evaluation import Evaluation
from dpexp.strategies.base import Strategy
from dpexp.strategies.placed import Placed
from dpexp.training.optimizers import OptimizerChoice
from dpexp.training.trainer import Trainer


@dataclass(frozen=True)
class Schedule:
    """How many batches each pass takes, and which passes there are.

    ``steps`` are measured. ``by_epoch``: metrics are evaluated after each epoch, and not after the last step.
    ``check``: whether the run is verified; ``profile``: whether operators are.
    """

    steps: int
    by_epoch: bool
    warmup: int
    phase_steps: int
    check: bool
    profile: bool


@dataclass(frozen=True)
class Prepared:
    """A run that can start: layout, devices, model (on the host), data, optimizer and schedule.

    ``request`` asks for devices, of which this process uses those of ``selection``. ``batch_size`` is the
    most rows of a batch. ``optimizer`` is None where the run does not train. ``dtype`` is that of the
    parameters, ``autocast`` that of mixed precision, empty for none. ``factories`` has what the options name,
    by option (see ``references.factories``). ``note`` is added to that of the verification.
    """

    strategy: Strategy
    request: DeviceRequest
    selection: DeviceSelection
    model: nn.Module
    data: Dataset
    batch_size: int
    seed: int
    optimizer: OptimizerChoice | None
    dtype: torch.dtype
    autocast: str
    schedule: Schedule
    evaluation: Evaluation
    factories: Mapping[str, Factory]
    run_name: str
    note: str = ""

    @property
    def accumulate(self) -> int:
        """How many batches have one step of the optimizer."""
        return 1 if self.optimizer is None else self.optimizer.accumulate

    @property
    def group(self) -> ProcessGroup:
        """The process group of the run."""
        return self.strategy.group

    @cached_property
    def batch_rows(self) -> dict[int, int]:
        """{rows: how many global batches of an epoch have so many}; those of the last batch come last."""
        return self.data.epochs.rows(self.batch_size)

    @property
    def batches_per_epoch(self) -> int:
        """How many global batches an epoch has, a smaller last one included."""
        return sum(self.batch_rows.values())

    @property
    def execution(self) -> str:
        """``real``, ``virtual`` or ``passthrough``: what kind of run this is; ``planned`` cannot run here."""
        if self.selection.is_virtual:
            return "virtual"
        if self.selection.missing:
            return "planned"
        return "passthrough" if self.strategy.needs.devices and not self.selection.used else "real"

    @property
    def may_mix_devices(self) -> bool:
        """Whether an operation may meet tensors of two devices, which emulated ones would not refuse.

        Models of dpexp do not; a user's device map or model may.
        """
        needs, is_known = self.strategy.needs, bool(self.factories["model"].name)
        return needs.prediction or (self.selection.is_virtual and not (is_known or needs.user_code))

    @property
    def name(self) -> str:
        """The run's name: ``--run-name``, or strategy, model and devices."""
        return self.name_on(max(self.group.size, len(self.selection.used)))

    def name_on(self, size: int) -> str:
        """The name on so many devices like the first."""
        if self.run_name:
            return self.run_name
        used = self.selection.used
        place = "cpu" if not used else f"{size}x{used[0].type}" if size > 1 else devices.label(used[0])
        model = self.factories["model"].name or self.factories["model"].attribute
        return f"{self.strategy.name}-{model}-{place}"

    def batches(self, epoch: int, *, shuffle: bool = True) -> Iterator[Batch]:
        """The global batches of one epoch, in the order of the seed. They are the same on every rank."""
        return self.data.batches(self.batch_size, seed=self.seed, epoch=epoch, shuffle=shuffle)

    def endless_batches(self, epoch: int = 0) -> Iterator[Batch]:
        """The global batches of epoch after epoch."""
        return chain.from_iterable(self.batches(each) for each in count(epoch))

    def part(self, batch: Batch) -> Batch:
        """This rank's rows of a global batch, and their weight.

        Every rank must take the same batches: a loss by tokens adds up the tokens of all.
        """
        return self.data.objective.weighted(batch.part(self.group.rows), self.group)

    def local_batches(self, epoch: int) -> Iterator[Batch]:
        """This rank's rows of the global batches of one epoch."""
        return map(self.part, self.batches(epoch))

    def as_last(self, batch: Batch) -> Batch:
        """A global batch with as many rows as the last one of an epoch has, taken from this one.

        So no pass reads an epoch of the user's data to its end. A batch with whole tensors stays as it is.
        """
        *_, rows = self.batch_rows
        return batch if rows == batch.rows or batch.whole() else batch.chosen(range(rows))

    def evaluated_batches(self) -> Iterator[Batch]:
        """All rows that are held out; without any, those of an epoch, or of the measured steps of a part."""
        if self.evaluation.held_out is not None:
            return self.evaluation.held_out.batches(self.batch_size, shuffle=False)
        return islice(self.batches(0, shuffle=False), min(self.schedule.steps, self.batches_per_epoch))

    def trainer(self, placed: Placed) -> Trainer:
        """The trainer of the run's steps."""
        placed.module.train(self.strategy.trains)
        devices.reset_peak_memory(placed.devices)
        return Trainer(
            placed, self.data.objective.loss, self.optimizer, self.autocast, self.group, must_train=True
        )

    def release(self) -> None:
        """Drop the model after its run: sharded, it holds the process group, whoever still holds this."""
        vars(self).pop("model")
