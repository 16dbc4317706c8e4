"""The runs of a sweep by cell and round, and the committed ones as files.

A *cell* is one config, which runs once in each *round*; ``CELL.rN`` names its run in round N. Committed
Records are in ``records/KIND/``, by kind of machine::

    CELL.json      the Record of the first round of a cell, whole
    runs.jsonl     a line for each other run: cell, round, and the fields that differ from the cell's Record
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpexp.config.run_config import BATCH_SIZE, FILING, RunConfig, known_options
from dpexp.config.strategy_options import REFERENCE
from dpexp.record.files import JournalError
from dpexp.record.fold import load_record
from dpexp.record.record import NOT_OF_DPEXP, Record, Row
from dpexp.record.view import RecordView
from dpexp.report.compare import group_key

ROWS = "runs.jsonl"


class PlannedRun(NamedTuple):
    """One run of a sweep: a cell in a round."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        """``whole-8.r2``"""
        return f"{self.cell}.r{self.round}"


@dataclass(frozen=True)
class Plan:
    """What a sweep runs: each cell once per round.

    ``name`` is the MLflow experiment of its runs; ``title`` is what ``--resume`` finds the sweep by.
    """

    name: str
    title: str
    runs: Mapping[str, RunConfig]
    repeats: int

    @property
    def order(self) -> list[PlannedRun]:
        """Every run in the order of execution: each round begins with the next cell."""
        cells, order = [*self.runs], []
        for number in range(self.repeats):
            first = number % len(cells)
            order += [PlannedRun(cell, number + 1) for cell in cells[first:] + cells[:first]]
        return order


Rounds = Mapping[int, RecordView]
"""{round: the finished run of a cell}, by round"""
RunsByCell = Mapping[str, Rounds]


def finished_runs(records: Mapping[str, Record]) -> dict[str, Rounds]:
    """The finished runs by cell, of Records by the names of their runs."""
    rounds: dict[str, dict[int, RecordView]] = {}
    for name, record in records.items():
        cell, _, number = name.rpartition(".r")
        if record.status == "finished":
            rounds.setdefault(cell, {})[int(number)] = RecordView(record)
    return {cell: dict(sorted(runs.items())) for cell, runs in rounds.items()}


def changed_fields(run: RunConfig, recorded: Row) -> list[str]:
    """The fields of a config that differ from a recorded one.

    Where the run is filed, and how it is delivered, does not count. A Record that is older than an option
    was made with the option's default, and one of the default batch size has the size that the data gave.
    """
    wanted, defaults = run.to_dict(), RunConfig(run.strategy).to_dict()
    keys = (wanted.keys() | known_options(recorded).keys()) - FILING
    keys -= {"batch_size"} if run.batch_size == BATCH_SIZE else set()
    return sorted(key for key in keys if wanted.get(key) != recorded.get(key, defaults.get(key)))


def speed_ups(runs: Mapping[str, Record]) -> list[Row]:
    """``{run, speed_up}`` of each run over the single device of its round that did the same work.

    ``runs`` are the Records by name. A run that cannot be judged has none.
    """
    judged = [
        ((name.rpartition(".r")[2], record.config.get("seed"), group_key(record)), record, usual)
        for name, record in runs.items()
        if (usual := (view := RecordView(record)).usual) is not None and view.noise is None
    ]
    singles = {key: usual.median for key, record, usual in judged if record.strategy == REFERENCE}
    return [
        {"run": record.run_id, "speed_up": singles[key] / usual.median}
        for key, record, usual in judged
        if key in singles and usual.median
    ]


def machine_kind(records: Iterable[Record]) -> str:
    """``cpu``, or the name of the accelerator that the runs used, as a folder name."""
    for record in records:
        chips = record.environment.get("accelerators") or []
        if chips and record.execution == "real" and any("cuda" in d for d in record.devices["used"]):
            return str(chips[0]["name"]).lower().replace(" ", "-")
    return "cpu"


# --- committed Records ---------------------------------------------------------------------------


def read_runs(folder: Path) -> dict[str, Record]:
    """{name of the run: Record} of a folder of committed Records. Raises JournalError for other files."""
    cells = {path.stem: load_record(path) for path in sorted(folder.glob("*.json"))}
    runs = {PlannedRun(cell, 1).name: record for cell, record in cells.items()}
    try:
        for row in _rows(folder):
            record = Record.from_dict(cells[row["cell"]].to_dict() | row)
            runs[PlannedRun(row["cell"], row["round"]).name] = record
    except NOT_OF_DPEXP as error:
        raise JournalError(f"{folder / ROWS}: a line is not a run of a cell: {error!r}") from error
    return runs


def write_runs(folder: Path, runs: Mapping[str, Sequence[Record]]) -> None:
    """Replace the committed Records of these cells by their runs, in the order of the rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in _rows(folder) if row["cell"] not in runs]
    for cell, records in runs.items():
        (folder / f"{cell}.json").write_text(records[0].to_json(), encoding="utf-8")
        first, *others = (json.loads(record.to_json()) for record in records)
        for number, other in enumerate(others, start=2):
            differs = {key: value for key, value in other.items() if value != first[key]}
            rows.append({"cell": cell, "round": number} | differs)
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _rows(folder: Path) -> list[Row]:
    """The lines of the other rounds; none where each cell has one run."""
    path = folder / ROWS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
