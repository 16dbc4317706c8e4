"""The Records of an experiment's runs by name: ``CELL.rN`` is the run of cell CELL in round N.

The committed ones are in ``records/KIND/``, by kind of machine::

    CELL.json      the Record of the first round of a cell, whole
    runs.jsonl     a line for each other run: cell, round, and the fields that differ from the cell's Record
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config.strategy_options import REFERENCE
from dpexp.record.files import JournalError
from dpexp.record.record import NOT_OF_DPEXP, Record, Row
from dpexp.record.view import RecordView
from dpexp.report.compare import group_key

RECORDS = "records"
"""The folder of an experiment with its committed Records."""
ROWS = "runs.jsonl"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: a cell in a round."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        """``whole-8.r2``"""
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
    """{name of the run: Record} of a folder of committed Records. Raises JournalError for other files."""
    cells = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}
    found = {f"{cell}.r1": Record.load(folder / f"{cell}.json") for cell in cells}
    for row in _rows(folder):
        try:
            record = Record.from_dict(cells[row["cell"]] | row)
            found[f"{row['cell']}.r{row['round']}"] = record
        except NOT_OF_DPEXP as error:
            raise JournalError(f"{folder / ROWS}: a line is not a run of a cell: {error!r}") from error
    return found


def write_runs(folder: Path, runs: Mapping[str, Sequence[Record]]) -> None:
    """Replace the committed Records of these cells by their runs, in the order of the rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in _rows(folder) if row["cell"] not in runs]
    for cell, records in runs.items():
        first, *others = [json.loads(record.to_json()) for record in records]
        (folder / f"{cell}.json").write_text(records[0].to_json(), encoding="utf-8")
        for number, other in enumerate(others, start=2):
            differs = {key: value for key, value in other.items() if value != first[key]}
            rows.append({"cell": cell, "round": number} | differs)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / ROWS).write_text(text, encoding="utf-8")


def _rows(folder: Path) -> list[Row]:
    """The lines of the other rounds; none where each cell has one run."""
    path = folder / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
