"""The Record (schema 1): every fact of one run, read from its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpexp.config.errors import describe
from dpexp.config.words import plural
from dpexp.record.files import JournalError, write_atomically
from dpexp.record.journal import JOURNAL, RECORD, SCHEMA, WATCH_STRATEGY, JournalReader, is_open, iso

Row = dict[str, Any]
NOT_OF_DPEXP = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What reading raises on values that dpexp does not write."""
WITHOUT_END = {
    "type": "LostContact",
    "message": "the process that recorded the run was killed, or its host is gone: its journal has no end",
    "traceback": "",
}
"""The error of a run whose writer has died, of the kind that a writer reports of another rank."""
_SPELLED = ("nan", "inf", "-inf")
"""Numbers that JSON lacks."""


@dataclass(repr=False)
class Record:
    """Schema 1, key by key; ``damage`` counts the lines of the journal that cannot be read."""

    schema: int = SCHEMA
    run_id: str = ""
    name: str = ""
    experiment: str = ""
    strategy: str = ""
    execution: str = ""
    status: str = "running"
    started: str = ""
    ended: str | None = None
    error: Row | None = None
    parent: str = ""  # the run id of the sweep that this run belongs to
    config: Row = field(default_factory=dict)
    config_digest: str = ""
    # {path, sha256} of each file and live object that the config names
    files: list[Row] = field(default_factory=list)
    environment: Row = field(default_factory=dict)
    data: Row = field(default_factory=dict)
    devices: Row = field(default_factory=lambda: {"requested": [], "used": [], "output": ""})
    device_map: list[Row] = field(default_factory=list)
    shapes: list[Row] = field(default_factory=list)
    steps: dict[str, list[Any]] = field(default_factory=lambda: {"time_ms": [], "loss": [], "samples": []})
    phases: dict[str, list[float]] = field(default_factory=dict)
    timeline: list[Row] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    memory_use: list[Row] = field(default_factory=list)  # by device and category, of one step
    work: Row = field(default_factory=dict)  # floating-point operations of that step
    verification: Row = field(default_factory=lambda: {"checked": False})
    digest: Row = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        labels = ", ".join(f"{key}={getattr(self, key)!r}" for key in ("run_id", "name", "status"))
        return f"{type(self).__name__}({labels})"

    @property
    def is_watched(self) -> bool:
        """Whether it is of a program's own loop, which dpexp cannot run again."""
        return self.config.get("strategy") == WATCH_STRATEGY

    @property
    def is_tracked(self) -> bool:
        """Whether the run is to be in MLflow."""
        return bool(self.config.get("track"))

    @classmethod
    def load(cls, path: Path) -> Record:
        """The Record of a run's folder, or of a Record's file.

        In a folder that is ``record.json``, or the fold of the journal if that file is missing, unreadable or
        older than the journal. Raises JournalError for what dpexp did not write, or a newer dpexp did.
        """
        if path.is_file():
            try:
                return cls.from_json(path.read_bytes())
            except (OSError, *NOT_OF_DPEXP) as error:
                raise JournalError(f"{path}: not a Record: {describe(error)}") from error
        journal, written = path / JOURNAL, path / RECORD
        if not written.is_file():
            return fold(journal)
        if not journal.exists():
            return cls.load(written)
        with contextlib.suppress(JournalError):
            if journal.stat().st_mtime_ns <= written.stat().st_mtime_ns:
                return cls.load(written)
        return fold(journal)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """The inverse of ``to_json``. Raises ValueError for another text, JournalError for a newer schema."""
        data = json.loads(text)
        if not isinstance(data, dict) or "run_id" not in data:
            raise ValueError("it has no run_id")
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of ``to_dict``; other keys are ignored. Raises JournalError for a newer schema."""
        check_schema(data.get("schema", 0), "record")
        known = {f.name for f in dataclasses.fields(cls)}
        record = cls(**{key: value for key, value in data.items() if key in known})
        for samples in (record.steps, record.phases, record.metrics):
            samples |= {key: _numbers(values) for key, values in samples.items()}
        record.verification = _errors(record.verification)
        return record

    def to_dict(self) -> Row:
        """The Record as one dict, keys in schema order. Its values are not copied."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        """Strict JSON, a line for each key and row; inf and nan are the strings that float() reads."""
        parts = (f" {json.dumps(key)}: {_json(value)}" for key, value in self.to_dict().items())
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply one entry of a journal; keys that a Record does not have are ignored.

        Raises JournalError for an entry of a newer schema.
        """
        for key, value in entry.get("set", {}).items():
            if key == "schema":
                check_schema(value, "journal")
            parent, name = self._locate(key)
            parent[name] = value
        for key, values in entry.get("extend", {}).items():
            parent, name = self._locate(key)
            parent.setdefault(name, []).extend(values)

    def _locate(self, key: str) -> tuple[dict[str, Any], str]:
        """The dict that contains a (dotted) key, and the key in it."""
        first, _, rest = key.partition(".")
        if first not in self.__dict__:
            return {}, key
        return (self.__dict__[first], rest) if rest else (self.__dict__, first)


def fold(journal: Path) -> Record:
    """The Record of the complete lines of a journal. Raises JournalError for a file that is no journal.

    A run whose journal holds no end and has no writer was killed, and ended with the last line: its error is
    ``WITHOUT_END``. Lines that cannot be read are skipped, and counted in ``damage``.
    """
    from dpexp.record.figures import summarize  # the figures of a Record are above it

    record, reader, last_at = Record(), JournalReader(journal), 0
    try:
        alive = is_open(journal)
        for entry in reader:
            try:
                record.apply(entry)
                last_at = entry.get("at", last_at)
            except NOT_OF_DPEXP:
                reader.unreadable += 1
    except FileNotFoundError as error:
        raise JournalError(f"no journal at {journal}: {error.strerror}") from error
    except OSError as error:
        raise JournalError(f"{journal} cannot be read: {error.strerror}") from error
    if not record.run_id and not alive:
        raise JournalError(f"{journal}: no line that can be read names a run")
    if reader.unreadable:
        record.damage = [f"{plural(reader.unreadable, 'line')} of {reader.lines} cannot be read"]
    try:
        if not alive and record.status == "running":
            record.status = "killed"
            record.ended = iso(last_at)
            record.error = record.error or dict(WITHOUT_END)
        summarize(record)
    except NOT_OF_DPEXP as error:
        raise JournalError(f"{journal} holds what dpexp does not write: {describe(error)}") from error
    return record


def finish(journal: Path) -> Record:
    """Fold the journal, write the Record beside it, and return it; while it has a writer nothing is written.

    If it cannot be written, for example on a full disk, the Record's ``damage`` holds the error.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a writer is alive, or `fold` raises it, too
            file = held.enter_context(journal.open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # no writer begins again meanwhile
        record = fold(journal)
        try:
            if record.status != "running":
                write_atomically(journal.with_name(RECORD), record.to_json().encode())
        except OSError as error:
            record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record


def check_schema(schema: object, what: str) -> None:
    """Raise JournalError unless this version of dpexp reads the schema."""
    if not isinstance(schema, int):
        raise JournalError(f"the {what}'s schema is {schema!r}, not a number: it was not written by dpexp")
    if schema > SCHEMA:
        raise JournalError(
            f"the {what} was written by a newer dpexp: its schema is {schema} and this dpexp reads up to "
            f"{SCHEMA}. Install dpexp {schema}.0 or newer to read it"
        )


def _json(value: Any) -> str:
    """A list of rows has one row a line; everything else is compact."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(map(_strict, value)) + "\n ]"
    return _strict(value)


def _strict(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nonfinite(value), allow_nan=False)


def _without_nonfinite(value: Any) -> Any:
    """The value with ``nan``, ``inf`` and ``-inf`` as strings, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item) for item in value]
    return value


def _numbers(values: list[Any]) -> list[Any]:
    """The list with numbers in place of those that JSON lacks."""
    if str not in set(map(type, values)):
        return values
    return [float(v) if v in _SPELLED else v for v in values]


def _errors(row: Row) -> Row:
    """A verification and the rows in it, whose errors are numbers again."""
    errors = {key: value for key, value in row.items() if key.endswith("error") or key == "tolerance"}
    numbers = {key: float(value) for key, value in errors.items() if value in _SPELLED}
    return row | {key: _errors(value) for key, value in row.items() if isinstance(value, dict)} | numbers
