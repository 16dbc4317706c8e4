"""The phase-timed steps as lanes of bars, each bar with its shapes and bytes.

    cpu:0              |scatter|replicate|parallel_apply      |gather|loss|…
    cpu:0 replica 0                      |0----------|
    cpu:1 replica 1                      |1-----------------|

    cpu:0 rank 0       |forward|loss|backward                 |optimizer|
                                    |compute----|
                                           |allreduce---------|

A phase is drawn on the device that it ends on, and those of a rank in the one lane of that rank. A replica
has a lane on its device. A phase inside another, or at the same time, stands on a further level of its lane.
The page, the notebook and the Chrome trace show these bars.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpexp.record.batches import Batches, Call, Shape
from dpexp.record.phases import rows_of
from dpexp.record.record import Row
from dpexp.record.traffic import by_phase
from dpexp.record.view import RecordView
from dpexp.report import layout, units

_ROUNDING = 1e-5
"""Bars whose end and start differ by less (ms) do not overlap: a Record rounds times to a nanosecond."""


@dataclass(frozen=True)
class Bar:
    """One phase, or one replica's part of it. Times in ms from the start of the step, shapes as text.

    With ranks, a rank is a replica, and the bars without one are those of the first rank again.
    """

    phase: str
    device: str
    replica: int | None
    start: float
    ms: float
    inputs: str = ""
    outputs: str = ""
    bytes: int | None = None
    is_of_rank: bool = False

    @property
    def end(self) -> float:
        return self.start + self.ms

    @property
    def name(self) -> str:
        return self.phase if self.replica is None or self.is_of_rank else self.owner

    @property
    def owner(self) -> str:
        """The replica or rank; nothing for a phase of all replicas."""
        return "" if self.replica is None else f"{'rank' if self.is_of_rank else 'replica'} {self.replica}"


@dataclass
class Lane:
    """The bars of one device, replica or rank, on levels from top to bottom: those of a level do not overlap.

    ``replica`` is None for a lane of phases. A lane without levels is of a device that has nothing to do.
    """

    device: str
    replica: int | None
    levels: list[list[Bar]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.device} {self.levels[0][0].owner if self.levels else 'idle'}".rstrip()

    def add(self, bar: Bar) -> None:
        """Put a bar on the first level that is free at its start; later bars start later."""
        for level in self.levels:
            if level[-1].end <= bar.start + _ROUNDING:
                level.append(bar)
                return
        self.levels.append([bar])


@dataclass(frozen=True)
class TimelineStep:
    """One phase-timed step: its start (ms since the first step), its time, the rows of its batch."""

    number: int
    start: float
    ms: float
    rows: int | None
    bars: list[Bar]
    lanes: list[Lane]

    @property
    def phases(self) -> dict[str, float]:
        """{phase: its time in this step in ms}, and that of the step."""
        times = {"step": self.ms}
        for bar in self.bars:
            if bar.replica is None:
                times[bar.phase] = times.get(bar.phase, 0.0) + bar.ms
        return times


def timeline_steps(view: RecordView) -> list[TimelineStep]:
    """Every phase-timed step of a Record, in order."""
    by_step: dict[int, list[Row]] = {}
    for row in view.record.timeline:
        by_step.setdefault(row["step"], []).append(row)
    groups = {group.rows: group for group in reversed(view.batches)}
    moved = {rows: by_phase(view.moves_of(group)) for rows, group in groups.items()}
    found = []
    for number, rows in sorted(by_step.items()):
        size = rows_of(view.record, number)
        found.append(_step(view, number, rows, size, groups.get(size or 0), moved.get(size or 0, {})))
    return found


def typical_step(view: RecordView, steps: list[TimelineStep]) -> TimelineStep | None:
    """The step whose time and phases lie nearest to their medians, of those that medians are of."""
    usual = [step for step in steps if view.usual_numbers is None or step.number in view.usual_numbers]
    times = {step.number: step.phases for step in usual or steps}
    names = {name for each in times.values() for name in each}
    medians = {name: statistics.median(each.get(name, 0.0) for each in times.values()) for name in names}

    def distance(step: TimelineStep) -> float:
        return sum(abs(times[step.number].get(name, 0.0) - ms) for name, ms in medians.items())

    return min(usual or steps, key=distance, default=None)


def _step(
    view: RecordView,
    number: int,
    rows: list[Row],
    size: int | None,
    group: Batches | None,
    moved: Mapping[str, int],
) -> TimelineStep:
    step_rows = [row for row in rows if row["phase"] == "step"] or rows
    start, end = min(row["start_us"] for row in step_rows), max(row["end_us"] for row in step_rows)
    ranks = {each["rank"]: each["device"] for each in view.record.devices.get("ranks") or []}
    bars = []
    for row in rows:
        if row["phase"] != "step":
            phase, replica = row["phase"], row["replica"]
            inputs, outputs = _shapes(phase, replica, group) if group else ("", "")
            size_moved = moved.get(phase) if replica is None else None
            times = (row["start_us"] - start) / 1000, (row["end_us"] - row["start_us"]) / 1000
            is_of_rank = replica in ranks
            bars.append(Bar(phase, row["device"], replica, *times, inputs, outputs, size_moved, is_of_rank))
    # of those that start together first what took no time, then the longest, which is outside
    bars.sort(key=lambda bar: (bar.start, bar.ms > 0, -bar.ms))
    lanes = _lanes(bars, ranks)
    busy = {lane.device for lane in lanes if lane.replica is not None}
    idle = [Lane(device, None) for device in view.devices if busy and device not in busy]
    return TimelineStep(number, start / 1000, (end - start) / 1000, size, bars, [*lanes, *idle])


def _lanes(bars: list[Bar], ranks: Mapping[int | None, str]) -> list[Lane]:
    """The lanes of these bars, which are sorted by start: one for each rank, or device and replica."""
    lanes: dict[tuple[str, int | None], Lane] = {}
    for bar in [bar for bar in bars if bar.is_of_rank] or bars:
        key = (ranks.get(bar.replica, bar.device), bar.replica)
        lanes.setdefault(key, Lane(*key)).add(bar)
    return sorted(
        lanes.values(),
        key=lambda lane: (lane.replica is not None, lane.replica or 0, layout.device_order(lane.device)),
    )


def _shapes(phase: str, replica: int | None, group: Batches) -> tuple[str, str]:
    """Input and output shapes of a bar; of a phase over all replicas those of each replica."""
    split = next(iter(group.replicated), None)
    if replica is not None:
        if split is None or replica >= len(split.inputs):
            return "", ""
        return units.shapes_text(split.inputs[replica]), units.shapes_text(split.outputs[replica])
    named = _call(group, {"forward": "", "transfer": "embedding.transfer"}.get(phase, phase))
    ends: Sequence[list[list[Shape]]] = (named.inputs, named.outputs) if named else ([], [])
    outer = _call(group, split.module if split else "")
    if split is not None and outer is not None:
        stages = [outer.inputs, split.inputs, split.outputs, outer.outputs]
        place = {"scatter": 0, "parallel_apply": 1, "gather": 2}.get(phase)
        ends = ends if place is None else stages[place : place + 2]
    inputs, outputs = (units.counted(map(units.shapes_text, shapes)) for shapes in ends)
    return inputs, outputs


def _call(group: Batches, module: str) -> Call | None:
    """The call of a module outside of replicas."""
    return next((call for call in group.calls if (call.module, call.scope) == (module, "outside")), None)
