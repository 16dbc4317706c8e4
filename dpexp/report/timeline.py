"""The phase-timed steps as lanes of bars, each bar with its shapes and bytes.

    cpu:0              |scatter|replicate|parallel_apply      |gather|loss|…
    cpu:0 replica 0                      |0----------|
    cpu:1 replica 1                      |1-----------------|

    cpu:0 rank 0       |forward|loss|backward                 |optimizer|
                                    |compute----|
                                           |allreduce---------|

A phase is drawn on the device that it ends on, and those of a rank in the one lane of that rank. A replica
has a lane on its device. A phase inside another, or at the same time, stands on a further level of its lane.
The figures, the HTML page, the Chrome trace and MLflow's spans show these bars.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpexp.record.batches import Batches, Shape
from dpexp.record.phases import rows_of
from dpexp.record.record import Record, Row
from dpexp.record.traffic import by_phase
from dpexp.record.view import RecordView
from dpexp.report import layout

Shapes = tuple[Shape, ...]
Groups = dict[int | None, Batches]
"""Batches by their rows."""
Moved = Mapping[str, int]
"""{phase: bytes}"""
_ROUNDING = 1e-5
"""Bars whose end and start differ by less (ms) do not overlap: a Record rounds times to a nanosecond."""


@dataclass(frozen=True)
class Bar:
    """One phase, or one replica's part of it. Times in ms from the start of the step.

    With ranks, a rank is a replica, and the bars without one are those of the first rank again.
    """

    phase: str
    device: str
    replica: int | None
    start: float
    ms: float
    inputs: Shapes = ()
    outputs: Shapes = ()
    bytes: int | None = None
    is_of_rank: bool = False

    @property
    def end(self) -> float:
        return self.start + self.ms

    @property
    def name(self) -> str:
        return self.phase if self.replica is None or self.is_of_rank else f"replica {self.replica}"

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
    def bars(self) -> list[Bar]:
        return [bar for level in self.levels for bar in level]

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


@dataclass
class TimelineStep:
    """One phase-timed step: its start (ms since the first step), its time, the rows of its batch.

    ``is_usual``: the medians of phases are of this step, too.
    """

    number: int
    start: float
    ms: float
    rows: int | None
    bars: list[Bar]
    lanes: list[Lane]
    is_usual: bool = True

    @property
    def drawn(self) -> int:
        """How many bars its lanes have."""
        return sum(len(lane.bars) for lane in self.lanes)

    @property
    def phases(self) -> dict[str, float]:
        """{phase: its time in this step in ms}, and that of the step."""
        times = {"step": self.ms}
        for bar in self.bars:
            if bar.replica is None:
                times[bar.phase] = times.get(bar.phase, 0.0) + bar.ms
        return times


def steps(record: Record | RecordView) -> list[TimelineStep]:
    """Every phase-timed step of a Record, in order."""
    view = RecordView.of(record)
    by_step: dict[int, list[Row]] = {}
    for row in view.record.timeline:
        by_step.setdefault(row["step"], []).append(row)
    groups: Groups = {group.rows: group for group in reversed(view.batches)}
    moved = {rows: by_phase(view.moves_of(group)) for rows, group in groups.items()}
    return [_step(view, number, rows, groups, moved) for number, rows in sorted(by_step.items())]


def typical_step(several: list[TimelineStep]) -> TimelineStep | None:
    """Of the usual steps the one whose time and phases lie nearest to their medians; None without steps."""
    usual = [step for step in several if step.is_usual] or several
    times = [step.phases for step in usual]
    names = dict.fromkeys(name for each in times for name in each)
    medians = {name: statistics.median(each.get(name, 0.0) for each in times) for name in names}

    def distance(place: int) -> float:
        return sum(abs(times[place].get(name, 0.0) - ms) for name, ms in medians.items())

    return usual[min(range(len(usual)), key=distance)] if usual else None


def _step(
    view: RecordView, number: int, rows: list[Row], groups: Groups, moved: Mapping[int | None, Moved]
) -> TimelineStep:
    step_rows = [row for row in rows if row["phase"] == "step"] or rows
    start = min(row["start_us"] for row in step_rows)
    end = max(row["end_us"] for row in step_rows)
    size = rows_of(view.record, number)
    group, sent = groups.get(size), moved.get(size, {})
    ranks = {each["rank"]: each["device"] for each in view.record.devices.get("ranks") or []}
    bars = _by_start([_bar(row, start, group, sent, ranks) for row in rows if row["phase"] != "step"])
    lanes = _lanes(bars, ranks)
    busy = {lane.device for lane in lanes if lane.replica is not None}
    if busy:  # a device without rows has an empty lane
        lanes += [Lane(device, None) for device in view.devices if device not in busy]
    is_usual = view.usual_numbers is None or number in view.usual_numbers
    return TimelineStep(number, start / 1000, (end - start) / 1000, size, bars, lanes, is_usual)


def _bar(
    row: Row, step_start: float, group: Batches | None, moved: Moved, ranks: Mapping[int | None, str]
) -> Bar:
    inputs, outputs = _shapes(row["phase"], row["replica"], group) if group else ((), ())
    start, ms = (row["start_us"] - step_start) / 1000, (row["end_us"] - row["start_us"]) / 1000
    size = moved.get(row["phase"]) if row["replica"] is None else None
    is_of_rank = row["replica"] in ranks
    return Bar(row["phase"], row["device"], row["replica"], start, ms, inputs, outputs, size, is_of_rank)


def _by_start(bars: list[Bar]) -> list[Bar]:
    """By start; of those that start together first what took no time, then the longest, which is outside."""
    return sorted(bars, key=lambda bar: (bar.start, bar.ms > 0, -bar.ms))


def _lanes(bars: list[Bar], ranks: Mapping[int | None, str]) -> list[Lane]:
    """The lanes of these bars, which are sorted by start: one for each rank, or device and replica."""
    of_ranks = [bar for bar in bars if bar.is_of_rank]
    lanes: dict[tuple[str, int | None], Lane] = {}
    for bar in of_ranks or bars:
        key = (ranks.get(bar.replica, bar.device), bar.replica)
        lanes.setdefault(key, Lane(*key)).add(bar)
    return sorted(
        lanes.values(),
        key=lambda lane: (lane.replica is not None, lane.replica or 0, layout.device_order(lane.device)),
    )


def _shapes(phase: str, replica: int | None, group: Batches) -> tuple[Shapes, Shapes]:
    """Input and output shapes of a bar; a phase over all replicas has the shapes of each replica."""
    split = next(iter(group.replicated), None)
    if replica is not None and split is not None and replica < len(split.inputs):
        return tuple(split.inputs[replica]), tuple(split.outputs[replica])
    if replica is None and phase in ("forward", "loss"):
        model = next((call for call in group.calls if call.scope == "outside"), None)
        inputs, outputs = (_flat(model.inputs), _flat(model.outputs)) if model else ((), ())
        return (inputs, outputs) if phase == "forward" else (outputs, ())
    if replica is None and phase in ("embedding", "transfer"):
        module = "embedding.transfer" if phase == "transfer" else phase
        call = next((call for call in group.calls if call.module == module), None)
        return (_flat(call.inputs), _flat(call.outputs)) if call else ((), ())
    if replica is not None or split is None:
        return (), ()
    pieces, results = _flat(split.inputs), _flat(split.outputs)
    return {
        "scatter": (_joined(split.inputs), pieces),
        "parallel_apply": (pieces, results),
        "gather": (results, _joined(split.outputs)),
    }.get(phase, ((), ()))


def _flat(calls: list[list[Shape]]) -> Shapes:
    return tuple(shape for call in calls for shape in call)


def _joined(calls: list[list[Shape]]) -> Shapes:
    """The shapes before scatter or after gather: the sum of the pieces' leading dimensions."""
    columns = (pieces for pieces in zip(*calls, strict=False) if pieces[0])
    return tuple([sum(dims[0] for dims in pieces), *pieces[0][1:]] for pieces in columns)
