"""The shapes of a run, grouped: equal batches together, the replicas of one module on one line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dpexp.record import Record, Row
from dpexp.report import units

Shape = list[int]


@dataclass
class Call:
    """A module as one batch saw it: outside of the replicas, or inside all of them together.

    ``inputs`` and ``outputs`` hold one list of shapes a replica, or one in all outside.
    """

    module: str
    scope: str
    devices: list[str] = field(default_factory=list)
    inputs: list[list[Shape]] = field(default_factory=list)
    outputs: list[list[Shape]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.module or "(model)"

    @property
    def where(self) -> str:
        """``cpu`` outside, ``replicas on cpu:0, cpu:1`` inside."""
        return f"replicas on {units.span(self.devices)}" if self.scope == "replica" else self.devices[0]

    def texts(self) -> tuple[str, str]:
        """Inputs and outputs as text, replicas joined by ``+``."""
        return (
            units.repeated(map(units.shapes, self.inputs)),
            units.repeated(map(units.shapes, self.outputs)),
        )


@dataclass
class Batches:
    """Batches of one epoch with the same shapes."""

    numbers: list[int]
    calls: list[Call]

    @property
    def rows(self) -> int:
        """Rows of the global batch: the leading dimension of the first input outside of replicas."""
        for call in self.calls:
            if call.scope == "outside":
                return next((dims[0] for dims in call.inputs[0] if dims), 0)
        return sum(self.split)

    @property
    def split(self) -> list[int]:
        """Rows a replica; empty where nothing was split."""
        for call in self.calls:
            if call.scope == "replica":
                return [next((dims[0] for dims in inputs if dims), 0) for inputs in call.inputs]
        return []

    @property
    def name(self) -> str:
        """``batches 0-2``, ``batch 3``."""
        first, last = self.numbers[0], self.numbers[-1]
        if first == last:
            return f"batch {first}"
        contiguous = last - first + 1 == len(self.numbers)
        return f"batches {first}-{last}" if contiguous else "batches " + ", ".join(map(str, self.numbers))

    def headline(self) -> str:
        """``30 rows -> 15 + 15``; the figures of DataParallel's tutorials."""
        split = f" -> {units.repeated(map(str, self.split))}" if self.split else ""
        return f"{self.rows} rows{split}"


def batches(record: Record) -> list[Batches]:
    """The batches in order, those with equal shapes together."""
    by_batch: dict[int, list[Row]] = {}
    for row in record.shapes:
        by_batch.setdefault(row["batch"], []).append(row)
    groups: dict[str, Batches] = {}
    for number, rows in sorted(by_batch.items()):
        same = json.dumps([{k: v for k, v in row.items() if k != "batch"} for row in rows], sort_keys=True)
        groups.setdefault(same, Batches([], [])).numbers.append(number)
        if not groups[same].calls:
            groups[same].calls.extend(_calls(rows))
    return _merged(list(groups.values()))


def _calls(rows: list[Row]) -> list[Call]:
    calls: dict[tuple[str, str], Call] = {}
    in_order = sorted(rows, key=lambda row: -1 if row["replica"] is None else row["replica"])
    places = {row["module"]: index for index, row in reversed(list(enumerate(rows)))}
    for row in in_order:
        call = calls.setdefault((row["module"], row["scope"]), Call(row["module"], row["scope"]))
        call.devices.append(row["device"])
        call.inputs.append(row["inputs"])
        call.outputs.append(row["outputs"])
    return [calls[key] for key in sorted(calls, key=lambda key: (places[key[0]], key[1] == "replica"))]


def _merged(groups: list[Batches]) -> list[Batches]:
    """Groups that read the same (only the order of threads differed) become one."""
    merged: dict[str, Batches] = {}
    for group in groups:
        key = repr(sorted((c.module, c.scope, c.devices, c.inputs, c.outputs) for c in group.calls))
        if key in merged:
            merged[key].numbers = sorted(merged[key].numbers + group.numbers)
        else:
            merged[key] = group
    return list(merged.values())
