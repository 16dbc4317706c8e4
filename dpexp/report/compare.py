"""Compare runs: which may be ranked against each other, which is faster, and by how much.

Runs are ranked only within a group: the same kind of execution, the same machine, the same work. Runs of one
config, with the same files and objects, are repeats and form one cell.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpexp.config.run_config import FILING, known_options
from dpexp.config.strategy_options import REFERENCE
from dpexp.record.batches import without_host
from dpexp.record.figures import At, Figure, figures
from dpexp.record.files import JournalError
from dpexp.record.fold import load_record
from dpexp.record.journal import SWEEP_STRATEGY
from dpexp.record.record import Record
from dpexp.record.steps import typical
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.intervals import Interval, medians, ratio_interval
from dpexp.report.layout import accelerator_names

WORK = ("model", "data", "batch_size", "dtype", "eval")
"""The options that say what a run computes, with the contents of its files."""
OF_REPEATS = FILING | {"seed"}
"""Config keys that don't make another config: runs that differ in them only are repeats."""
STEP = next(figure for figure in figures(At.TABLE) if figure.name == "step_ms")


class GroupKey(NamedTuple):
    """What must be equal for two runs to be ranked against each other."""

    execution: str
    machine: tuple[str, ...]
    work: tuple[str, ...]


def group_key(record: Record) -> GroupKey:
    """The key of a run's group."""
    facts, config = record.environment, record.config
    machine = (str(facts.get("host")), str(facts.get("cpu")), *accelerator_names(record))
    work = (*(f"{key.replace('_', ' ')} {config.get(key)}" for key in WORK), _contents(record))
    return GroupKey(record.execution, machine, work)


def config_key(record: Record) -> str:
    """Config and files as text, without the options that only file the run: equal for repeats."""
    kept = {key: value for key, value in known_options(record.config).items() if key not in OF_REPEATS}
    return json.dumps([kept, record.files], sort_keys=True)


def _contents(record: Record) -> str:
    """The digests of the files and objects that the model and the data come from; empty without any."""
    texts = [str(record.config.get(key, "")) for key in ("model", "data")]
    texts += [text.replace(".", "/") for text in texts]  # a module, of which the file is recorded
    digests = []
    for row in record.files:
        path = str(row.get("path"))
        stem = path.removesuffix("/__init__.py").removesuffix(".py")
        if any(stem in text for text in texts):
            digests.append(f"contents {path} {str(row.get('sha256'))[:8]}")
    return ", ".join(digests)


@dataclass(frozen=True)
class Cell:
    """The runs of one config on one machine, by round of a sweep or by id. ``rows``: of its usual batch."""

    rows: int
    runs: Mapping[Hashable, RecordView]

    @property
    def first(self) -> Record:
        """The Record of its first run."""
        return next(iter(self.runs.values())).record

    def number(self, figure: Figure) -> float | None:
        """A figure of these runs; None where it is not known."""
        return figure.of_runs([figure.number(run) for run in self.runs.values()])

    @property
    def noisy(self) -> int:
        """How many of its runs cannot be judged."""
        return sum(run.noise is not None for run in self.runs.values())

    @property
    def devices(self) -> int:
        """How many devices computed, without the host; 1 for the host alone."""
        return max(1, len(without_host(self.first)))

    @property
    def typical_ms(self) -> float:
        """The step time of the cell: the geometric mean of its runs' medians."""
        return typical(medians(STEP, self.runs).values())

    def metrics(self) -> dict[str, float]:
        """{name: the mean over the runs of its last value}, of metrics that every run has."""
        of_runs = [run.metrics for run in self.runs.values()]
        names = [name for name in of_runs[0] if all(name in metrics for metrics in of_runs)]
        return {name: statistics.fmean(metrics[name] for metrics in of_runs) for name in names}

    def speed_up(self, baseline: Cell) -> Interval:
        """How many times faster than the baseline, with its 95% interval."""
        return ratio_interval(medians(STEP, baseline.runs), medians(STEP, self.runs))


@dataclass(frozen=True)
class Group:
    """Cells that may be ranked against each other, in the order of their first runs."""

    key: GroupKey
    cells: Sequence[Cell]

    @property
    def baseline(self) -> Cell:
        """The first ``single``, else the cell with the fewest devices, the first of equals."""
        single = next((cell for cell in self.cells if cell.first.strategy == REFERENCE), None)
        return single or min(self.cells, key=lambda cell: cell.devices)

    @property
    def ranked(self) -> list[Cell]:
        """Fastest first; empty where a run cannot be judged."""
        is_judged = not any(cell.noisy for cell in self.cells)
        return sorted(self.cells, key=lambda cell: cell.typical_ms) if is_judged else []


@dataclass(frozen=True)
class Comparison:
    """Groups, that of the newest run first, and the runs that could not be compared, each with the reason."""

    groups: list[Group]
    left_out: list[tuple[str, str]]

    def refusals(self) -> list[str]:
        """Why the groups are not ranked against each other: one sentence for each thing that differs."""
        kinds, machines, works = (
            _distinct(group.key[place] for group in self.groups) for place in range(len(GroupKey._fields))
        )
        differing = [
            " / ".join(values) for each in zip(*works, strict=True) if len(values := _distinct(each)) > 1
        ]
        if any(text.startswith("model ") for text in differing):  # each strategy has one of its own
            differing.append("one --model for all makes them comparable")
        emulated = "emulated devices share one CPU, so that their times are not those of real devices"
        unsplit = "a wrapper that passed through has split nothing"
        hosts = "; ".join(units.counted(machine, ", ") for machine in machines)
        reasons = [
            (kinds, f"{' and '.join(kinds)} runs", emulated if "virtual" in kinds else unsplit),
            (machines, "runs of different machines", hosts),
            (works, "runs that do different work", "; ".join(differing)),
        ]
        return [
            f"{runs} are not ranked against each other: {reason}"
            for values, runs, reason in reasons
            if len(values) > 1
        ]


def compare(folders: Sequence[Path]) -> Comparison:
    """Read and group the runs of these folders; what sweeps record of themselves is no run."""
    records, left_out = [], []
    for folder in folders:
        try:
            records.append(load_record(folder))
        except JournalError as error:
            left_out.append((folder.name, str(error)))
    runs: dict[GroupKey, dict[tuple[str, int], dict[Hashable, RecordView]]] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.strategy == SWEEP_STRATEGY:
            continue
        view = RecordView(record)
        if record.status != "finished" or (usual := view.usual) is None:
            why = record.error.get("message") if record.error else "" if view.usual else "no measured steps"
            label = record.name or record.run_id
            left_out.append((label, f"{record.status}: {why}" if why else record.status))
            continue
        key = group_key(record)
        cells = runs[key] = runs.pop(key, {})  # the group of the newest run is the last
        cells.setdefault((config_key(record), usual.rows), {})[_round(record)] = view
    groups = [
        Group(key, [Cell(rows, of_cell) for (_, rows), of_cell in cells.items()])
        for key, cells in reversed(runs.items())
    ]
    return Comparison(groups, left_out)


def _round(record: Record) -> Hashable:
    """(sweep, round, seed) of a sweep's run, which has its round in its name; of any other run its id."""
    named = re.search(r"\.r(\d+)$", record.name)
    return (record.parent, named[1], record.config.get("seed")) if record.parent and named else record.run_id


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
