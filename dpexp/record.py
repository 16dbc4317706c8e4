"""Record: the facts of one run, and the append-only journal on disk that they are folded from.

``runs/<run_id>/journal.jsonl`` is the truth. Each line is a JSON object of a sequence number, one
operation on the Record and a checksum of all that stands before it::

    {"seq":4,"extend":{"steps.time_ms":[0.31,0.29],"steps.loss":[1.1,1.0]},"crc":"8d3f01aa"}

``set`` gives keys their value, ``extend`` appends to lists; a dotted key names a key of a dict. So a
journal cut at any byte folds to a valid Record of what it holds. ``record.json`` beside it is the
fold, written at the end. Needs neither torch nor mlflow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

SCHEMA = 1
JOURNAL = "journal.jsonl"
RECORD = "record.json"
Row = dict[str, Any]


class JournalError(RuntimeError):
    """A journal that cannot be folded at all: not there, not a journal, or of a newer schema."""


@dataclass
class Record:
    """Schema 1, key by key as DESIGN has it; ``damage`` names the journal lines that were lost."""

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
    config: Row = field(default_factory=dict)
    config_digest: str = ""
    environment: Row = field(default_factory=dict)
    devices: Row = field(default_factory=lambda: {"requested": [], "used": [], "output": ""})
    device_map: list[Row] = field(default_factory=list)
    shapes: list[Row] = field(default_factory=list)
    steps: dict[str, list[Any]] = field(default_factory=lambda: {"time_ms": [], "loss": [], "samples": []})
    phases: dict[str, list[float]] = field(default_factory=dict)
    timeline: list[Row] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    verification: Row = field(default_factory=lambda: {"checked": False})
    digest: Row = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def to_dict(self) -> Row:
        """The Record as one JSON-ready dict, keys in schema order."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of ``to_dict``. Raises JournalError for a newer schema."""
        if data.get("schema", 0) > SCHEMA:
            raise JournalError(_newer(data["schema"]))
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Carry out one journal entry. Raises JournalError for an entry of a newer schema."""
        for key, value in entry.get("set", {}).items():
            if key == "schema" and value > SCHEMA:
                raise JournalError(_newer(value))
            holder, last = self._holder(key)
            holder[last] = value
        for key, values in entry.get("extend", {}).items():
            holder, last = self._holder(key)
            holder.setdefault(last, []).extend(values)

    def _holder(self, key: str) -> tuple[dict[str, Any], str]:
        holder = self.__dict__
        *path, last = key.split(".", 1)
        for part in path:
            holder = holder[part]
        return holder, last

    def summarize(self) -> Row:
        """Median, spread and n of the raw samples; replaces ``summary``'s computed keys and returns it."""
        self.summary |= {
            "step_ms": spread(self.steps["time_ms"]),
            "samples_per_s": _rate(self.steps["samples"], self.steps["time_ms"]),
            "phases_ms": {name: statistics.median(ms) for name, ms in self.phases.items() if ms},
            "phase_coverage": _coverage(self.timeline),
        }
        return self.summary


def spread(samples: Sequence[float]) -> Row | None:
    """{median, iqr, min, max, n} of the samples, in their unit; None without any."""
    if not samples:
        return None
    low, middle, high = (
        (samples[0],) * 3 if len(samples) == 1 else statistics.quantiles(samples, n=4, method="inclusive")
    )
    return {"median": middle, "iqr": high - low, "min": min(samples), "max": max(samples), "n": len(samples)}


def _rate(samples: Sequence[int], time_ms: Sequence[float]) -> float | None:
    total = sum(time_ms)
    return 1000.0 * sum(samples) / total if total > 0 else None


def _coverage(timeline: Iterable[Row]) -> float | None:
    """The part of the phase-timed steps that lies inside a phase: phases may nest and overlap."""
    whole = 0.0
    inside = 0.0
    spans: dict[int, list[tuple[float, float]]] = {}
    for row in timeline:
        if row["phase"] == "step":
            whole += row["end_us"] - row["start_us"]
        else:
            spans.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
    for of_step in spans.values():
        reached = float("-inf")
        for start, end in sorted(of_step):
            inside += max(0.0, end - max(start, reached))
            reached = max(reached, end)
    return inside / whole if whole > 0 else None


def now() -> str:
    """This moment, UTC, ISO 8601 to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_run_id() -> str:
    """Twelve random hex digits; a unique prefix names the run as well."""
    return secrets.token_hex(6)


# --- the journal ---------------------------------------------------------------------------------


class Journal:
    """The only writer of one run's ``journal.jsonl``.

    ``set`` and ``extend`` buffer; ``flush`` writes one line and syncs it to the disk. Raises
    FileExistsError when the run has a journal already.
    """

    def __init__(self, runs: Path, run_id: str) -> None:
        self.folder = runs / run_id
        self.folder.mkdir(parents=True)
        self.path = self.folder / JOURNAL
        self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._seq = 0
        self._set: Row = {}
        self._extend: dict[str, list[Any]] = {}
        sync_folder(self.folder)
        sync_folder(runs)
        self.set(schema=SCHEMA, run_id=run_id)

    def set(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Give keys of the Record their value; ``{"steps.loss": …}`` for a dotted key."""
        self._set |= dict(values or {}) | more

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Append to lists of the Record."""
        for key, items in values.items():
            self._extend.setdefault(key, []).extend(items)

    def flush(self) -> None:
        """Write what is buffered as one line, and wait until the disk has it. Raises OSError."""
        entry: Row = {"seq": self._seq}
        if self._set:
            entry["set"] = self._set
        if self._extend:
            entry["extend"] = self._extend
        if len(entry) == 1:
            return
        self._file.write(_seal(entry))
        os.fsync(self._file.fileno())
        self._seq += 1
        self._set, self._extend = {}, {}

    def close(self) -> None:
        """Flush and close. The Record is then ``finish``'s to write."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _seal(entry: Row) -> bytes:
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def _open_seal(line: bytes) -> Row:
    """The entry of one line. Raises ValueError where the line is not what was written."""
    body, _, crc = line.rpartition(b',"crc":"')
    if crc != b'%08x"}\n' % zlib.crc32(body):
        raise ValueError("checksum differs")
    entry = json.loads(body + b"}")
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    return entry


def entries(path: Path, damage: list[str] | None = None) -> Iterator[Row]:
    """The journal's entries in order. A damaged line is left out and named in ``damage``."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _open_seal(line)
            except ValueError as error:
                if damage is not None:
                    damage.append(f"line {number}: {error}")


def fold(path: Path) -> Record:
    """The Record of a journal, cut off or not. Raises JournalError where there is none, or a newer one."""
    record = Record()
    try:
        for entry in entries(path, record.damage):
            record.apply(entry)
    except FileNotFoundError:
        raise JournalError(f"no journal at {path}") from None
    record.summarize()
    return record


def finish(journal: Path) -> Record:
    """Fold the journal and write ``record.json`` beside it, atomically. Returns the Record."""
    record = fold(journal)
    write_atomically(journal.with_name(RECORD), json.dumps(record.to_dict(), indent=1).encode())
    return record


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync, rename: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a new or renamed file is lost without it)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _newer(schema: int) -> str:
    return (
        f"written by a newer dpexp (schema {schema}; this one reads up to {SCHEMA}): update dpexp to read it"
    )
