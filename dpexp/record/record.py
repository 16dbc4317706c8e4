"""The Record (schema 1): every fact of one run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpexp.record.packing import unpack
from dpexp.record.schema import wrong_types

SCHEMA = 1
Row = dict[str, Any]
SAMPLES = ("steps.", "phases.", "metrics.", "system.")
"""Lists of one value a step or epoch: a value whose journal line is lost is None, so that others stay."""
_SPELLED = ("nan", "inf", "-inf")
"""Numbers that JSON lacks."""
MOST_LOST = 10_000_000
"""Samples that a journal can have lost at most: a larger hole was not made by a lost line."""


class JournalError(RuntimeError):
    """A journal or Record that cannot be read or written: what is wrong, where, and what to do."""


@dataclass(repr=False)
class Record:
    """Schema 1, key by key; ``damage`` describes what the journal has lost. A lost sample is None."""

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
    origin: str = ""  # the signature of the home and user that made the run
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

    def to_dict(self) -> Row:
        """The Record as one dict, keys in schema order. Its values are not copied."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        """Strict JSON, a line for each key and row; inf and nan are the strings that float() reads."""
        parts = (f" {json.dumps(key)}: {_json(value)}" for key, value in self.to_dict().items())
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of ``to_dict`` and ``to_json``.

        Raises JournalError for a newer schema, and ValueError for values that are not a Record's.
        """
        check_schema(data.get("schema", 0), "record")
        known = {f.name for f in dataclasses.fields(cls)}
        record = cls(**{key: value for key, value in data.items() if key in known})
        for samples in (record.steps, record.phases, record.metrics):
            if isinstance(samples, dict):
                samples |= {key: _numbers(values) for key, values in samples.items()}
        if isinstance(record.verification, dict):
            record.verification = _errors(record.verification)
        if wrong := wrong_types(record.to_dict()):
            raise ValueError(f"not a Record of dpexp: {wrong[0]}")
        return record

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply the operations of one journal entry.

        Raises JournalError for an entry of a newer schema; ValueError for unknown keys and types, after
        everything else was applied.
        """
        rejected = []
        for key, length in entry.get("cut", {}).items():
            parent, name = self._locate(key)
            if parent is not None and isinstance(parent.get(name), list):
                del parent[name][length:]
        for key, value in entry.get("set", {}).items():
            if key == "schema":
                check_schema(value, "journal")
            parent, name = self._locate(key)
            rows = _unpacked(value) if key in ("shapes", "device_map") else value
            if parent is None or not _is_same_kind(name, parent.get(name), rows):
                rejected.append(key)
            else:
                parent[name] = rows
        for key, values in entry.get("extend", {}).items():
            parent, name = self._locate(key)
            if parent is None or not isinstance(parent.setdefault(name, []), list):
                rejected.append(key)
            elif _align(parent[name], key, entry.get("from", {}).get(key)):
                parent[name].extend(values)
            else:
                rejected.append(key)
        for key, length in entry.get("lengths", {}).items():
            parent, name = self._locate(key)
            if parent is not None and isinstance(parent.setdefault(name, []), list):
                _align(parent[name], key, length)
        if rejected:
            raise ValueError(f"a Record cannot hold {', '.join(rejected)}")

    def _locate(self, key: str) -> tuple[dict[str, Any] | None, str]:
        """The dict that contains a (dotted) key, and the key in it; None if there is no such dict."""
        first, dot, rest = key.partition(".")
        if not dot:
            return (self.__dict__ if first in self.__dict__ else None), first
        value = self.__dict__.get(first)
        return (value if isinstance(value, dict) else None), rest

    def missing_steps(self) -> list[int]:
        """The numbers of the measured steps whose journal lines are lost."""
        return [number for number, ms in enumerate(self.steps["time_ms"]) if ms is None]


def _align(values: list[Any], key: str, length: int | None) -> bool:
    """Make a list of samples as long as it was when the line was written; False where it cannot be.

    It is shorter where lines are lost, and longer where the line is lost that cut it.
    """
    if length is None or not key.startswith(SAMPLES):
        return True
    del values[length:]
    lost = length - len(values)
    if lost <= MOST_LOST:
        values.extend([None] * lost)
    return lost <= MOST_LOST


def present(values: Iterable[Any]) -> list[Any]:
    """The samples without those that are lost."""
    return [value for value in values if value is not None]


def _unpacked(value: Any) -> Any:
    """Packed rows as rows; anything else as it is."""
    with contextlib.suppress(ValueError):
        return unpack(value) if isinstance(value, dict) else value
    return value


def _is_same_kind(key: str, old: Any, new: Any) -> bool:
    """A dict must stay a dict and a list a list; only an error may become None."""
    return not isinstance(old, dict | list) or isinstance(new, type(old)) or key == "error"


def check_schema(schema: object, what: str) -> None:
    """Raise JournalError unless this version of dpexp reads the schema."""
    if not isinstance(schema, int):
        raise JournalError(f"the {what}'s schema is {schema!r}, not a number: it was not written by dpexp")
    if schema > SCHEMA:
        raise JournalError(
            f"the {what} was written by a newer dpexp: its schema is {schema} and this dpexp reads up to "
            f"{SCHEMA}. Install dpexp {schema}.0 or newer to read it"
        )


def new_run_id() -> str:
    """Twelve random hex digits; users may abbreviate them."""
    return secrets.token_hex(6)


def _json(value: Any) -> str:
    """A list of rows has one row a line; everything else is compact."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(_strict(row) for row in value) + "\n ]"
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


def _numbers(values: Any) -> Any:
    """A list with numbers in place of those that JSON lacks; anything else as it is."""
    if not isinstance(values, list) or str not in set(map(type, values)):
        return values
    return [float(v) if v in _SPELLED else v for v in values]


def _errors(row: Any) -> Any:
    """A verification and the rows in it, whose errors are numbers again; anything else as it is."""
    if not isinstance(row, dict):
        return row
    errors = {key: value for key, value in row.items() if key.endswith("error") or key == "tolerance"}
    numbers = {key: float(value) for key, value in errors.items() if value in _SPELLED}
    return row | {key: _errors(value) for key, value in row.items() if isinstance(value, dict)} | numbers
