"""Compare runs: which may be ranked against each other, which is faster, and by how much.

Runs are ranked within a group only: the same kind of execution, the same machine, the same work. Runs
of one config are repeats and form one cell. Speed-ups are ratios of median step times, each with a
bootstrap interval; a difference whose interval holds 1 is within the noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dpexp.config import REFERENCE
from dpexp.record import JournalError, Record, spread
from dpexp.report.analysis.statistics import Interval, bootstrap_runs, ratio, usual_times
from dpexp.report.compare.run_records import Place, RunRecords

T = TypeVar("T")


@dataclass
class Cell:
    """The runs of one config on one machine. ``rows`` is the size of its usual batch."""

    rows: int
    runs: list[Record] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    """Step times in ms of the usual batch, run by run."""

    @property
    def first(self) -> Record:
        return self.runs[0]

    @property
    def devices(self) -> int:
        """How many devices computed, the host left out; 1 for the host alone."""
        return max(1, len([device for device in self.first.devices["used"] if device != "cpu"]))

    @cached_property
    def step_ms(self) -> dict[str, float]:
        """{median, iqr, min, max, n} over all runs."""
        figures = spread([time for times in self.times for time in times])
        assert figures is not None
        return figures

    @property
    def samples_per_s(self) -> float:
        return 1000 * self.rows / self.step_ms["median"]

    def gradient_error(self) -> float | None:
        """The largest of the runs; None where one was not checked."""
        found = [run.verification.get("gradient_error") for run in self.runs]
        known = [float(error) for error in found if error is not None]
        return max(known) if len(known) == len(found) else None

    def memory(self) -> dict[str, int]:
        """Peak bytes by device, the largest of the runs."""
        return {
            device: max(run.memory.get(device, 0) for run in self.runs)
            for device in {device: None for run in self.runs for device in run.memory}
        }

    def speed_up(self, baseline: Cell) -> Interval:
        """How many times faster than the baseline, with its 95% interval."""
        return bootstrap_runs(ratio, baseline.times, self.times)


@dataclass
class Group:
    """Cells that may be ranked against each other, fastest first."""

    execution: str
    machine: tuple[str, ...]
    work: tuple[str, ...]
    cells: list[Cell] = field(default_factory=list)

    @property
    def baseline(self) -> Cell:
        """The first ``single``, else the cell with the fewest devices, the first of equals."""
        given = sorted(self.cells, key=lambda cell: cell.first.started)
        single = next((cell for cell in given if cell.first.strategy == REFERENCE), None)
        return single or min(given, key=lambda cell: cell.devices)

    @property
    def ranked(self) -> list[Cell]:
        return sorted(self.cells, key=lambda cell: cell.step_ms["median"])


@dataclass
class Comparison:
    """Groups, the largest first, and the runs that could not be compared with why."""

    groups: list[Group]
    left_out: list[tuple[str, str]]

    def refusals(self) -> list[str]:
        """Why the groups are not ranked against each other: one sentence for each thing that differs."""
        said = []
        kinds = _distinct(group.execution for group in self.groups)
        if len(kinds) > 1:
            said.append(
                f"{' and '.join(kinds)} runs are not ranked against each other: emulated devices share one "
                "CPU, so "
                "their times say nothing about real ones"
            )
        machines = _distinct(", ".join(group.machine[:2]) for group in self.groups)
        if len(_distinct(group.machine for group in self.groups)) > 1:
            said.append(
                f"runs of different machines are not ranked against each other: {'; '.join(machines)}"
            )
        works = _distinct(group.work for group in self.groups)
        if len(works) > 1:
            said.append(
                f"runs that do different work are not ranked against each other: {_differences(works)}"
            )
        return said


def compare(folders: Sequence[Path]) -> Comparison:
    """Read and group the runs of these folders, in their order."""
    briefs, left_out = RunRecords(), []
    groups: dict[Place, Group] = {}
    cells: dict[tuple[object, ...], Cell] = {}
    for folder in folders:
        try:
            record = briefs.read(folder)
        except JournalError as error:
            left_out.append((folder.name, str(error)))
            continue
        rows, times = usual_times(record)
        if record.status != "finished" or not times:
            why = f": {record.error['message']}" if record.error else ""
            left_out.append((record.name or record.run_id, f"{record.status}{why}"))
            continue
        place, config = briefs.place(record)
        cell = cells.get((place, config, rows))
        if cell is None:
            cell = cells[(place, config, rows)] = Cell(rows)
            groups.setdefault(place, Group(*place)).cells.append(cell)
        cell.runs.append(record)
        cell.folders.append(folder)
        cell.times.append(times)
    return Comparison(sorted(groups.values(), key=lambda group: -len(group.cells)), left_out)


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _differences(works: Sequence[tuple[str, ...]]) -> str:
    names = ("model", "data", "batch size", "dtype", "eval")
    differing = [
        f"{name} {' / '.join(_distinct(values))}"
        for name, values in zip(names, zip(*works, strict=True), strict=True)
        if len(set(values)) > 1
    ]
    return "; ".join(differing)
