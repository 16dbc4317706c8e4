"""Batches: the shapes of a run, equal batches together, and the replicas of one module in one call."""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from dpexp.config.ranges import range_or_list
from dpexp.record.record import Record, Row

Shape = list[int]
_CONTENT = itemgetter("module", "scope", "replica", "device", "inputs", "outputs")


@dataclass
class Call:
    """A module's call in one batch: outside of the replicas, or inside all of them together.

    ``inputs`` and ``outputs`` have one list of shapes for each replica; outside of replicas, one list.
    ``rows`` are the Record's, of the first batch with these shapes.
    """

    module: str
    scope: str
    devices: list[str] = field(default_factory=list)
    inputs: list[list[Shape]] = field(default_factory=list)
    outputs: list[list[Shape]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.module or "(model)"

    @property
    def where(self) -> str:
        """``cpu`` outside, ``2 replicas`` inside."""
        count = len(self.devices)
        return f"{count} replica{'s' * (count > 1)}" if self.scope == "replica" else self.devices[0]


@dataclass
class Batches:
    """The batches of one epoch that have the same shapes."""

    numbers: list[int]
    calls: list[Call]

    @property
    def rows(self) -> int:
        """Rows of the global batch: the leading dimension of the first input outside of replicas."""
        outside = next((call for call in self.calls if call.scope == "outside"), None)
        return _leading(outside.inputs[0]) if outside else sum(self.split)

    @property
    def split(self) -> list[int]:
        """Rows of each replica; empty where no batch was split."""
        replicas = next((call for call in self.calls if call.scope == "replica"), None)
        return [_leading(inputs) for inputs in replicas.inputs] if replicas else []

    @property
    def replicated(self) -> list[Call]:
        """The calls of the outermost modules that ran as replicas."""
        calls = [call for call in self.calls if call.scope == "replica"]
        if model := [call for call in calls if call.module == ""]:
            return model
        outer = tuple(f"{call.module}." for call in calls)
        return [call for call in calls if not call.module.startswith(outer)]

    @property
    def name(self) -> str:
        """``batches 0-2``, ``batch 3``."""
        return f"batch{'es' * (len(self.numbers) > 1)} {range_or_list(self.numbers)}"


def batches(record: Record) -> list[Batches]:
    """The batches in order; batches with equal shapes form one group, whatever the order of the threads."""
    by_batch: dict[int, list[Row]] = {}
    for row in record.shapes:
        by_batch.setdefault(row["batch"], []).append(row)
    groups: dict[str, Batches] = {}
    before: list[Any] = []
    group = Batches([], [])
    for number, rows in sorted(by_batch.items()):
        content = list(map(_CONTENT, rows))
        if content != before:  # the usual case of equal batches needs no more than this
            calls, before = _calls(rows), content
            group = groups.setdefault(str(sorted(map(repr, calls))), Batches([], calls))
        group.numbers.append(number)
    return list(groups.values())


def _leading(shapes: list[Shape]) -> int:
    """The leading dimension of the first shape that has one."""
    return next((dims[0] for dims in shapes if dims), 0)


def _calls(rows: list[Row]) -> list[Call]:
    """The calls of one batch by their modules' first call, each with its replicas in order."""
    calls: dict[tuple[str, str], Call] = {}
    first = {row["module"]: index for index, row in reversed(list(enumerate(rows)))}
    for row in sorted(rows, key=lambda row: -1 if row["replica"] is None else row["replica"]):
        key = (row["module"], row["scope"])
        call = calls[key] if key in calls else calls.setdefault(key, Call(*key))
        call.devices.append(row["device"])
        call.inputs.append(row["inputs"])
        call.outputs.append(row["outputs"])
        call.rows.append(row)
    return sorted(calls.values(), key=lambda call: (first[call.module], call.scope == "replica"))
