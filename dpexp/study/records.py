"""The Records of an experiment's runs by name: ``CELL.rN`` is the run of cell CELL in round N."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config.strategy_options import REFERENCE
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.report.compare import group_key

RECORDS = "records"
"""The folder of an experiment with its committed Records."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: a cell in a round."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        """``whole-8.r2``: the run's name, and its committed file's without ``.json``."""
        return f"{self.cell}.r{self.round}"


@dataclass(frozen=True)
class MeasuredRun(PlannedRun):
    """A finished run of a sweep with its Record."""

    record: Record

    @cached_property
    def view(self) -> RecordView:
        """The figures of its Record."""
        return RecordView(self.record)


RunsByCell = Mapping[str, Sequence[MeasuredRun]]


def measured_runs(records: Mapping[str, Record]) -> dict[str, list[MeasuredRun]]:
    """{cell: its finished runs by round} of Records by the names of their runs."""
    found: dict[str, list[MeasuredRun]] = {}
    for name, record in records.items():
        cell, _, number = name.rpartition(".r")
        if record.status == "finished":
            found.setdefault(cell, []).append(MeasuredRun(cell, int(number), record))
    for runs in found.values():
        runs.sort(key=lambda run: run.round)
    return found


def speed_ups(runs: Mapping[str, Record]) -> list[Row]:
    """``{run, speed_up}`` of each run over the single device of its round that did the same work.

    ``runs`` are the Records by name.
    """
    found = [
        ((name.rpartition(".r")[2], record.config.get("seed"), group_key(record)), record, usual)
        for name, record in runs.items()
        if (usual := RecordView(record).usual) is not None
    ]
    singles = {key: usual.median for key, record, usual in found if record.strategy == REFERENCE}
    return [
        {"run": record.run_id, "speed_up": singles[key] / usual.median}
        for key, record, usual in found
        if key in singles and usual.median
    ]


def machine_kind(records: Mapping[str, Record]) -> str:
    """``cpu``, or the name of the accelerator that the runs used, as a folder name."""
    for record in records.values():
        chips = record.environment.get("accelerators") or []
        if chips and record.execution == "real" and any("cuda" in d for d in record.devices["used"]):
            return str(chips[0]["name"]).lower().replace(" ", "-")
    return "cpu"


def run_records(folder: Path) -> dict[str, Record]:
    """{name of the run: Record} of a folder's files ``CELL.rN.json``, by name."""
    return {path.stem: Record.load(path) for path in sorted(folder.glob("*.r[0-9]*.json"))}
