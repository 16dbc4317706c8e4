"""The Record (schema 1): every fact of one run, as an object and as JSON. ``fold`` reads it from a folder."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpexp.record.files import JournalError
from dpexp.record.journal import SCHEMA, WATCH_STRATEGY

Row = dict[str, Any]
NOT_OF_DPEXP = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What reading raises on values that dpexp does not write."""
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
    plan: list[Row] = field(default_factory=list)  # a row for each layout, of a plan
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
