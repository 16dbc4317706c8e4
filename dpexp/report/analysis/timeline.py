"""The phase-timed steps as lanes of bars, each bar with all that is known about it.

    cpu:0              |scatter|replicate|parallel_apply      |gather|loss|…
    cpu:0 replica 0                      |0----------|
    cpu:1 replica 1                      |1-----------------|

Phases stand on the device that they end on; what overlaps (a phase inside another) goes to a lane of
its own, and every replica has a lane on its device. Pictures, the HTML page, the Chrome trace and
MLflow's spans are all drawn from these.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from dpexp.record import Record, Row
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import rows_of
from dpexp.report.analysis.shapes import Batches, Call, Shape, batches

ROUNDING = 1e-5
"""Ends and starts closer than this (ms) touch: the Record's times are rounded to a nanosecond."""


@dataclass(frozen=True)
class Bar:
    """One phase, or one replica's part of it. Times in ms from the start of the step."""

    phase: str
    device: str
    replica: int | None
    start: float
    ms: float
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    bytes: int | None = None

    @property
    def end(self) -> float:
        return self.start + self.ms

    @property
    def name(self) -> str:
        return self.phase if self.replica is None else f"replica {self.replica}"


@dataclass
class Lane:
    """Bars that do not overlap, all on one device; ``replica`` is None for a lane of phases."""

    device: str
    replica: int | None
    bars: list[Bar] = field(default_factory=list)

    @property
    def name(self) -> str:
        if not self.bars:
            return f"{self.device} idle"
        return self.device if self.replica is None else f"{self.device} replica {self.replica}"


@dataclass
class Step:
    """One phase-timed step: when it began (ms since the first), how long it took, rows of its batch."""

    number: int
    start: float
    ms: float
    rows: int | None
    lanes: list[Lane]

    @property
    def bars(self) -> list[Bar]:
        return sorted((bar for lane in self.lanes for bar in lane.bars), key=lambda bar: (bar.start, -bar.ms))


def steps(record: Record) -> list[Step]:
    """Every phase-timed step of the Record, in order."""
    by_step: dict[int, list[Row]] = {}
    for row in record.timeline:
        by_step.setdefault(row["step"], []).append(row)
    groups = batches(record)
    sent = Sent(record)
    return [_step(record, number, rows, groups, sent) for number, rows in sorted(by_step.items())]


def typical(several: list[Step]) -> Step | None:
    """The step that looks most like the others: of the largest batch, the one of median time."""
    if not several:
        return None
    largest = max((step.rows or 0) for step in several)
    alike = [step for step in several if (step.rows or 0) == largest]
    return sorted(alike, key=lambda step: step.ms)[(len(alike) - 1) // 2]


def median_ms(several: list[Step]) -> float:
    """Median time in ms of the steps; raises StatisticsError without any."""
    return statistics.median(step.ms for step in several)


def _step(record: Record, number: int, rows: list[Row], groups: list[Batches], sent: Sent) -> Step:
    whole = [row for row in rows if row["phase"] == "step"]
    start = min(row["start_us"] for row in whole or rows)
    end = max(row["end_us"] for row in whole or rows)
    size = rows_of(record, number)
    group = next((one for one in groups if one.rows == size), None)
    bars = [_bar(row, start, group, sent) for row in rows if row["phase"] != "step"]
    lanes = _lanes(bars)
    return Step(number, start / 1000, (end - start) / 1000, size, lanes + _idle(record, lanes))


def _idle(record: Record, lanes: list[Lane]) -> list[Lane]:
    """An empty lane for every device that got no rows while others computed replicas."""
    busy = {lane.device for lane in lanes if lane.replica is not None}
    idle = [device for device in record.devices["used"] if busy and device != "cpu" and device not in busy]
    return [Lane(device, None) for device in idle]


def _bar(row: Row, zero: float, group: Batches | None, sent: Sent) -> Bar:
    inputs, outputs = _shapes(row, group)
    return Bar(
        row["phase"],
        row["device"],
        row["replica"],
        (row["start_us"] - zero) / 1000,
        (row["end_us"] - row["start_us"]) / 1000,
        inputs,
        outputs,
        sent.bytes(row, group, outputs),
    )


def _lanes(bars: list[Bar]) -> list[Lane]:
    lanes: list[Lane] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, -bar.ms)):
        free = (
            lane
            for lane in lanes
            if (lane.device, lane.replica) == (bar.device, bar.replica)
            and lane.bars[-1].end <= bar.start + ROUNDING
        )
        lane = next(free, None)
        if lane is None:
            lane = Lane(bar.device, bar.replica)
            lanes.append(lane)
        lane.bars.append(bar)
    return sorted(
        lanes,
        key=lambda lane: (lane.replica is not None, lane.replica or 0, layout.device_order(lane.device)),
    )


# --- what went in and out ------------------------------------------------------------------------

Shapes = tuple[Shape, ...]


def _shapes(row: Row, group: Batches | None) -> tuple[Shapes, Shapes]:
    """Shapes that a bar took and gave; for a phase over all replicas, one shape a replica."""
    if group is None:
        return (), ()
    if row["replica"] is not None:
        return _of_replica(group, row["replica"])
    phase = row["phase"]
    split = _split(group)
    if phase in ("forward", "loss"):
        outside = next((call for call in group.calls if call.scope == "outside"), None)
        if outside is None:
            return (), ()
        return (
            (_flat(outside.inputs), _flat(outside.outputs))
            if phase == "forward"
            else (_flat(outside.outputs), ())
        )
    if phase in ("embedding", "transfer"):
        name = layout.TRANSFER if phase == "transfer" else phase
        named = next((call for call in group.calls if call.module == name), None)
        return (_flat(named.inputs), _flat(named.outputs)) if named else ((), ())
    if split is None:
        return (), ()
    pieces, results = _flat(split.inputs), _flat(split.outputs)
    return {
        "scatter": (_joined(split.inputs), pieces),
        "parallel_apply": (pieces, results),
        "gather": (results, _joined(split.outputs)),
    }.get(phase, ((), ()))


def _split(group: Batches) -> Call | None:
    """The call of the outermost replicated module; None where nothing was replicated."""
    for module in layout.split_module(group):
        return next(call for call in group.calls if call.module == module and call.scope == "replica")
    return None


def _of_replica(group: Batches, replica: int) -> tuple[Shapes, Shapes]:
    split = _split(group)
    if split is None or replica >= len(split.inputs):
        return (), ()
    return tuple(split.inputs[replica]), tuple(split.outputs[replica])


def _flat(calls: list[list[Shape]]) -> Shapes:
    return tuple(shape for call in calls for shape in call)


def _joined(calls: list[list[Shape]]) -> Shapes:
    """The shapes before scatter or after gather: the pieces' leading dimensions added up."""
    return tuple(
        [sum(one[0] for one in parts), *parts[0][1:]] for parts in zip(*calls, strict=False) if parts[0]
    )


class Sent:
    """Bytes that a phase moves; None for a phase that moves nothing or where it isn't known."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._copied: dict[int, int] = {}

    def bytes(self, row: Row, group: Batches | None, outputs: Shapes) -> int | None:
        if row["replica"] is not None or group is None:
            return None
        if row["phase"] == "replicate":
            return self._copies(len(group.split))
        if row["phase"] in ("scatter", "gather", "transfer"):
            ids = layout.id_shapes(self._record, group) if row["phase"] == "scatter" else frozenset()
            return sum(layout.tensor_bytes(self._record, dims, ids) for dims in outputs)
        return None

    def _copies(self, replicas: int) -> int:
        """Bytes of parameters copied when so many replicas run (a short batch runs fewer)."""
        if replicas not in self._copied:
            self._copied[replicas] = sum(
                row["bytes"] * min(len(row["replicas"]), max(0, replicas - 1))
                for row in self._record.device_map
            )
        return self._copied[replicas]
