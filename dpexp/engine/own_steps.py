"""The run's own steps beside a single device, as entries of the Record: ``first_steps`` and ``last_step``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice

import torch

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.engine.prepare import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.verify import refuse
from dpexp.record.journal import Journal
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import Difference
from dpexp.verification.mode import Mode
from dpexp.verification.own_steps import FIRST, OwnSteps, Pairs
from dpexp.verification.result import Result
from dpexp.verification.touched_rows import large_tables, with_touched_rows


class OwnVerification:
    """Made before the model is placed. A step that differs is recorded, and raises VerificationError.

    ``proven`` is the mode in which training mode was compared before.
    """

    def __init__(
        self, prepared: Prepared, journal: Journal, progress: ProgressBar, proven: Mode | None = None
    ) -> None:
        self._prepared, self._journal, config = prepared, journal, prepared.config
        self._progress, self._entry = progress, "first_steps"
        self._first = min(FIRST, config.warmup)
        self._last = (1 + FIRST - self._first) * config.accumulate
        model, self._notes = prepared.model, list[str]()
        if not prepared.strategy.needs.full_tables and large_tables(model):
            model, self._notes = with_touched_rows(model, self._batches())
        dtype = getattr(torch, config.dtype)
        self._own = OwnSteps(
            model, prepared.data.objective, prepared.optimizer, dtype, config.autocast, self._report, proven
        )

    def _batches(self) -> list[Batch]:
        """The global batches of all steps that are compared, as the first rank fetches them."""
        config, prepared = self._prepared.config, self._prepared
        steps = config.steps if config.epochs is None else config.epochs * prepared.batches_per_epoch
        first, last = (prepared.endless_global_batches(number) for number in (0, steps))
        with kept_globals():
            batches = [*islice(first, self._first), *islice(last, self._last)]
        return list(prepared.group.broadcast(0, batches))

    def first(self, trainer: Trainer, batches: Iterable[Batch]) -> None:
        """The run's first steps, on the first of these batches of this rank."""
        self._record("first_steps", "as placed, before the first step", self._own.bind(trainer))
        result = self._own.first(self._pairs(islice(batches, self._first)))
        devices.reset_peak_memory(trainer.placed.devices)
        self._record("first_steps", "in the run's own first steps", result)

    def last(self, number: int) -> None:
        """Steps from the trained state, on the batches that would come after so many steps."""
        self._entry = "last_step"
        parts = islice(self._prepared.endless_batches(number), self._last)
        result = self._own.last(self._pairs(parts, number))
        self._record("last_step", "after the last measured step, from its state", result)

    def _pairs(self, parts: Iterable[Batch], first: int = 0) -> Pairs:
        """The global batches from number ``first`` on, of these parts: random data is not drawn again."""
        group = self._prepared.group
        for number, part in enumerate(parts, first):
            by_rank = group.all_gather(part.copied()) if group.size > 1 else [part]
            yield Batch.joined(group.one_of_each_dp_rank(by_rank)) or self._fetched(number), part

    def _fetched(self, number: int) -> Batch | None:
        """The global batch of this number, which pads all rows alike; None if it is random."""
        with kept_globals():
            both = [next(self._prepared.endless_global_batches(number)) for _ in range(2)]
        bits = [tensors.digest(tensors.walk((each.inputs, each.targets))) for each in both]
        of_all = {*chain.from_iterable(self._prepared.group.all_gather(bits))}
        return both[0] if len(of_all) == 1 else None

    def _report(self, difference: Difference, text: str) -> None:
        dtype: torch.dtype = getattr(torch, self._prepared.config.dtype)
        found = Result(dtype, worst={difference.kind: difference}, failed=difference, cause=text)
        self._journal.set({f"verification.{self._entry}": found.row()})
        self._journal.set({"verification.passed": False, "verification.cause": text})
        self._journal.flush()
        self._progress.report_difference(text)

    def _record(self, name: str, where: str, result: Result) -> None:
        result = replace(result, notes=[*result.notes, *self._notes])
        self._journal.set({f"verification.{name}": result.row()})
        if result.cause:
            cause = f"{where}, in {self._type}: {result.cause}"
            refuse(self._prepared, self._journal, result.tolerance, cause)

    @property
    def _type(self) -> str:
        config = self._prepared.config
        return f"{config.dtype} under autocast to {config.autocast}" if config.autocast else config.dtype
