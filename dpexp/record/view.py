"""RecordView: a Record, and what follows from its raw samples and rows, each computed once.

Terminal, MLflow, report, lists and experiments look at a Record through a view, so that they cannot differ.
steps.py, phases.py, batches.py and traffic.py say how each is computed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from functools import cached_property

from dpexp.record.batches import Batches, batches, largest, without_host
from dpexp.record.phases import (
    REST,
    Phase,
    StepSpans,
    phase_samples,
    phase_shares,
    phase_tree,
    step_spans,
    usual_numbers,
)
from dpexp.record.record import Record
from dpexp.record.steps import Noise, Steps, noise, present, spread, times_by_rows, usual_steps, wall_rate
from dpexp.record.traffic import Move, moves

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "peak", "reserved")
"""The figures of a row of ``memory_use``, in bytes."""


class RecordView:
    """The figures of one Record, which must not change meanwhile. Times are in ms, sizes in bytes."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @classmethod
    def of(cls, record: Record | RecordView) -> RecordView:
        """The view of a Record; a view, which several screens share, is itself."""
        return record if isinstance(record, RecordView) else cls(record)

    # --- steps ---

    @cached_property
    def by_rows(self) -> dict[int, list[float]]:
        """{rows of the batch: times of its measured steps}"""
        return times_by_rows(self.record.steps["samples"], self.record.steps["time_ms"])

    @cached_property
    def usual(self) -> Steps | None:
        """The measured steps of the most frequent batch size, which the step time is of."""
        return usual_steps(self.by_rows)

    @property
    def usual_times(self) -> list[float]:
        """The times of those steps."""
        return list(self.usual.times) if self.usual is not None else []

    @property
    def samples_per_s(self) -> float | None:
        """The rows of a usual batch over the step time."""
        return None if self.usual is None else self.usual.samples_per_s

    @property
    def wall_samples_per_s(self) -> float | None:
        """The rows of all measured steps over their wall time; None if a step lacks it."""
        return wall_rate(self.record.steps["samples"], self.record.steps.get("wall_ms", []))

    @cached_property
    def noise(self) -> Noise | None:
        """Why the run cannot be judged by those steps; None where it can."""
        return noise(self.usual_times)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """{name: the last value of what was measured once per epoch}"""
        found = {name: present(values) for name, values in self.record.metrics.items()}
        return {name: values[-1] for name, values in found.items() if values}

    @cached_property
    def errors(self) -> dict[str, float]:
        """{output_error and the like: the relative error to a single device}"""
        found = self.record.verification.items()
        return {key: float(value) for key, value in found if key.endswith("_error") and value is not None}

    # --- phases ---

    @cached_property
    def usual_numbers(self) -> set[int] | None:
        """The phase-timed steps that phases are of: of the usual batch size; None where sizes are unknown."""
        return usual_numbers(self.record, self.usual.rows if self.usual is not None else 0)

    @cached_property
    def phase_samples(self) -> dict[str, list[float]]:
        """{phase: its times in those steps}; all of them where they are not one to a step."""
        return phase_samples(self.record, self.usual_numbers)

    @cached_property
    def phase_medians(self) -> dict[str, float]:
        """{phase: its median time}"""
        return {name: statistics.median(times) for name, times in self.phase_samples.items() if times}

    @cached_property
    def spans(self) -> list[StepSpans]:
        """The phase-timed steps that phases are of."""
        return step_spans(self.record, self.usual_numbers)

    @property
    def timed_ms(self) -> float:
        """The median of their times; 0 without any."""
        return statistics.median([step.ms for step in self.spans] or [0.0])

    @cached_property
    def phase_shares(self) -> dict[str, float]:
        """{phase: its part of a step, the mean over the steps}, and that of what is in no phase."""
        return phase_shares(self.spans)

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases by their start, each followed by the phases inside it."""
        known = [(name, depth) for name, depth in phase_tree(self.record) if self.phase_samples[name]]
        return [self._phase(name, depth, self.phase_samples[name]) for name, depth in known]

    @property
    def rest(self) -> Phase | None:
        """The time of a step that is in no phase, as if it were one; None where phases cover all of it."""
        rests = [step.rest for step in self.spans]
        return self._phase(REST, 0, rests) if self.phase_shares.get(REST) else None

    def _phase(self, name: str, depth: int, times: list[float]) -> Phase:
        figures = spread(times) or {}
        share, size = self.phase_shares.get(name, 0.0), self.bytes_by_phase[name]
        return Phase(name, depth, figures["median"], figures["iqr"], figures["n"], share, size)

    @property
    def phase_coverage(self) -> float | None:
        """The part of a step that is inside at least one phase."""
        return 1 - self.phase_shares[REST] if REST in self.phase_shares else None

    # --- batches and traffic ---

    @cached_property
    def batches(self) -> list[Batches]:
        """The batches of an epoch; those with equal shapes are one group."""
        return batches(self.record)

    @cached_property
    def largest(self) -> Batches | None:
        """The group of the largest batch."""
        return largest(self.batches)

    @cached_property
    def devices(self) -> list[str]:
        """The devices in use, without the host."""
        return without_host(self.record)

    @cached_property
    def _known_moves(self) -> list[Move] | None:
        return moves(self.record, self.batches)

    @property
    def moves(self) -> list[Move]:
        """What a step of the largest batch moves between devices; empty where it is not known."""
        return self._known_moves or []

    @property
    def bytes_moved(self) -> int | None:
        """The bytes of these moves; None where it is not known what moves."""
        return None if self._known_moves is None else sum(move.bytes for move in self._known_moves)

    @cached_property
    def bytes_by_phase(self) -> Counter[str]:
        """{phase: the bytes that it moves in that step}"""
        found = Counter[str]()
        for move in self.moves:
            found[move.phase] += move.bytes
        return found

    # --- memory and work, of one observed step ---

    @cached_property
    def memory_bytes(self) -> dict[str, int]:
        """{category: bytes of the device that has most of it}"""
        rows = self.record.memory_use
        sizes = {key: [row[key] for row in rows if key in row] for key in CATEGORIES}
        return {key: max(found) for key, found in sizes.items() if found}

    @cached_property
    def flops(self) -> dict[str, int]:
        """{forward and backward: floating-point operations}, without zeros."""
        return {name: count for name, count in self.record.work.get("flops", {}).items() if count}

    @property
    def flops_per_s(self) -> float | None:
        """Those of the observed step over the step time."""
        return self._per_second(sum(self.flops.values()))

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens of the observed step over the step time."""
        return self._per_second(self.record.work.get("tokens") or 0)

    def _per_second(self, amount: float) -> float | None:
        """The amount of the observed step over the step time; None for a step of other batches."""
        rows, usual = self.record.work.get("rows"), self.usual
        is_same = usual is not None and usual.median and rows == usual.rows
        return float(1000 * amount / usual.median) if amount and usual and is_same else None
