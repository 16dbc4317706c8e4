"""The Records of an experiment's runs as files: ``CELL.rN.json`` of cell CELL in round N, ``sweep.json``."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.config.names import cell_title
from dpexp.config.strategy_registry import REFERENCE
from dpexp.record import json_text
from dpexp.record.figures.step_times import speed_up
from dpexp.record.record import Record, Row
from dpexp.record.runs import sweep_records
from dpexp.record.view import RecordView

SWEEP, CHECKSUMS = f"{sweep_records.OF_SWEEP}.json", "SHA256SUMS"
BALANCED = "balanced"
"""The ``order`` of a sweep's rounds; those of older versions of dpexp were in random order."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: a cell in a round."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        """``whole-8.r2``: the run's name, and its file's without ``.json``."""
        return f"{self.cell}.r{self.round}"

    @property
    def title(self) -> str:
        """``whole on 2, run 1``: for screens."""
        return cell_title(self.name)


@dataclass(frozen=True)
class MeasuredRun(PlannedRun):
    """A finished run of a sweep with its Record, and seconds of its process where they are known.

    ``looks`` are the first and the last round after which the sweep could end, if it ended as soon as its
    claims were decided. ``cells`` is how many cells ran in its rounds if their order was balanced, else 0.
    """

    record: Record
    wall_s: float | None = None
    looks: tuple[int, int] | None = None
    cells: int = 0

    @cached_property
    def view(self) -> RecordView:
        """The figures of its Record."""
        return RecordView(self.record)


RunsByCell = Mapping[str, Sequence[MeasuredRun]]


def sweep_record(folder: Path) -> Record:
    """The Record of the sweep that made the Records of a folder; an empty one before its end."""
    return read_record(folder / SWEEP) if (folder / SWEEP).is_file() else Record()


def looks_of(sweep: Row) -> tuple[int, int] | None:
    """The rounds after which a sweep of this config could end; None if their number was fixed."""
    return (int(sweep["repeats"]), int(sweep["limit"])) if sweep.get("limit") else None


def measured_runs(folder: Path, config: Row | None = None) -> dict[str, list[MeasuredRun]]:
    """{cell: its finished runs by round} of a folder of Records. Raises JournalError for a newer Record.

    ``config`` is that of a sweep that has not ended; of an ended one its Record has it.
    """
    sweep = sweep_record(folder)
    config, seconds = config or sweep.config, sweep.summary
    paths = [(path, *path.stem.rpartition(".r")[::2]) for path in sorted(folder.glob("*.r[0-9]*.json"))]
    cells = len({cell for _, cell, _ in paths}) if config.get("order") == BALANCED else 0
    found: dict[str, list[MeasuredRun]] = {}
    for path, cell, number in paths:
        record = read_record(path)
        if record.status == "finished":
            wall_s = seconds.get(f"wall_s.{path.stem}")
            run = MeasuredRun(cell, int(number), record, wall_s, looks_of(config), cells)
            found.setdefault(cell, []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.round)
    return found


def speed_ups(runs: Mapping[str, Record]) -> list[Row]:
    """``{run, speed_up}`` of each run over the single device of its round, for the same global batch.

    ``runs`` are the Records by the names of their files, in order.
    """
    by_round: dict[str, list[Record]] = {}
    for name, record in runs.items():
        by_round.setdefault(name.rpartition(".r")[2], []).append(record)
    rows = []
    for records in by_round.values():
        single = next((RecordView(each).usual for each in records if each.strategy == REFERENCE), None)
        for record in records:
            usual = RecordView(record).usual
            if single is not None and usual is not None and usual.rows == single.rows and usual.median:
                rows.append({"run": record.run_id, "speed_up": speed_up(single.median, usual.median)})
    return rows


def run_records(folder: Path) -> dict[str, Record]:
    """{name of the file: Record} of a folder's runs, by name."""
    return {path.stem: read_record(path) for path in sorted(folder.glob("*.r*.json"))}


def read_record(path: Path) -> Record:
    """The Record of a JSON file. Raises ConfigError for any other file, JournalError for a newer Record."""
    try:
        return parse_record(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a Record: {error}") from None


def parse_record(text: str | bytes) -> Record:
    """The Record in a JSON text. Raises ValueError for any other text, JournalError for a newer Record."""
    data = json_text.loads(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if not isinstance(data, dict) or "run_id" not in data:
        raise ValueError("it has no run_id")
    return Record.from_dict(data)


def checksums(folder: Path) -> str:
    """The SHA256SUMS of a folder's Records, as ``sha256sum`` writes it."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("*.json"))
    )
