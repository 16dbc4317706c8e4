"""Content: what of a Record goes where in MLflow. Pure functions; neither mlflow nor a store is needed.

====================  =====================================================================
params                the flat config
metrics by step       ``loss``, ``time_ms/step``, ``time_ms/<phase>``
metrics by epoch      what the loop measured once an epoch, as ``accuracy``
metrics, one figure   ``summary/…``
tags                  ``dpexp.…``, ``git.…``, ``host``, the note
tables                ``shapes.json``, ``device_map.json``
artifacts             ``record.json``, ``long_values.json``, the figures
====================  =====================================================================

A point's time is that of its journal line, never that of its delivery: delivered twice, it is the same
row of MLflow's table, whose key holds run, name, step, time and value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpexp.record import Record, Row

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
LONG_VALUES = "long_values.json"
_SERIES = {"steps.loss": "loss", "steps.time_ms": "time_ms/step"}
_TAKEN = {"loss"}


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric: its name, value, time in ms since 1970, and step."""

    key: str
    value: float
    at: int
    step: int


def points(entry: Row) -> Iterator[Point]:
    """The points of one journal line, in the order of their steps."""
    at = int(entry.get("at", 0))
    for source, first, values in _lists(entry):
        key = series(source)
        if key is not None:
            for step, value in enumerate(values, start=first):
                if isinstance(value, int | float):
                    yield Point(key, float(value), at, step)


def _lists(entry: Row) -> Iterator[tuple[str, int, list[Any]]]:
    """(dotted key, index of the first item, items) of every list that a line extends, or sets as a whole."""
    for source, values in entry.get("extend", {}).items():
        if isinstance(values, list):
            yield source, int(entry.get("from", {}).get(source, 0)), values
    for kind, values in entry.get("set", {}).items():
        named = values.items() if isinstance(values, dict) else [("", values)]
        for name, items in named:
            if isinstance(items, list):
                yield f"{kind}.{name}" if name else kind, 0, items


def series(source: str) -> str | None:
    """The metric that shows a list of the Record: ``steps.loss`` -> ``loss``; None for other lists."""
    if source in _SERIES:
        return _SERIES[source]
    kind, _, name = source.partition(".")
    if kind == "phases":
        return legal(f"time_ms/{name}")
    if kind == "metrics":
        return legal(f"epoch/{name}" if name in _TAKEN else name)
    if kind == "system":
        return legal(f"system/{name}")
    return None


def legal(key: str) -> str:
    """The key with ``_`` for every character that MLflow's names can't have, at most 250 long."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:MAX_KEY]


def figures(record: Record) -> dict[str, float]:
    """``summary/…``: every single figure of the summary, of nested ones the path."""
    flat: dict[str, float] = {}
    _flatten("summary", record.summary, flat)
    return flat


def _flatten(path: str, value: Any, flat: dict[str, float]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(f"{path}/{key}", item, flat)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        flat[legal(path)] = float(value)


def params(record: Record) -> dict[str, str]:
    """The flat config as text, at full length."""
    return {key: _text(value) for key, value in record.config.items()}


def tags(record: Record) -> dict[str, str]:
    """What runs are searched and grouped by, at full length."""
    environment, git = record.environment, record.environment.get("git") or {}
    verified = record.verification.get("passed") if record.verification.get("checked") else "not checked"
    found: dict[str, Any] = {
        "dpexp.run_id": record.run_id,
        "dpexp.schema": record.schema,
        "dpexp.strategy": record.strategy,
        "dpexp.execution": record.execution,
        "dpexp.status": record.status,
        "dpexp.verified": verified,
        "dpexp.config_digest": record.config_digest,
        "dpexp.devices": ", ".join(record.devices.get("used", [])),
        **{f"git.{key}": value for key, value in git.items()},
        **{key: environment.get(key) for key in ("host", "os", "python", "torch", "cuda", "cpu")},
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(map(str, environment.get("argv") or [])) or None,
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
    }
    if shown := [{"path": name, "type": "table"} for name, rows in _tables(record).items() if rows]:
        found["mlflow.loggedArtifacts"] = json.dumps(shown)  # MLflow shows these as tables
    if record.error:
        found["dpexp.error"] = f"{record.error.get('type')}: {record.error.get('message')}"
    if record.damage:
        found["dpexp.damage"] = "; ".join(record.damage)
    if "nonfinite" in record.summary:
        found["dpexp.nonfinite"] = json.dumps(record.summary["nonfinite"])
    return {key: _text(value) for key, value in found.items() if value not in (None, "")}


def fitted(values: Mapping[str, str], limit: int) -> tuple[dict[str, str], dict[str, str]]:
    """The values as MLflow takes them, and those that were too long for it, whole.

    What is cut off says where the rest is: ``… (whole in long_values.json)``.
    """
    mark = f"… (whole in {LONG_VALUES})"
    short, long = {}, {}
    for key, value in values.items():
        if len(value) > limit or legal(key) != key:
            long[key] = value
        short[legal(key)] = value if len(value) <= limit else value[: limit - len(mark)] + mark
    return short, long


def table(rows: list[Row]) -> str:
    """Rows as the JSON of ``log_table``: MLflow shows it as a table, and compares it across runs."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    data = [[_cell(row.get(key)) for key in columns] for row in rows]
    return json.dumps({"columns": columns, "data": data})


def tables(record: Record) -> dict[str, str]:
    """The tables' artifacts by file name; only those with rows."""
    return {name: table(rows) for name, rows in _tables(record).items() if rows}


def _tables(record: Record) -> dict[str, list[Row]]:
    return {"shapes.json": record.shapes, "device_map.json": record.device_map}


def millis(iso: str | None) -> int | None:
    """ISO 8601 as ms since 1970; None for none."""
    return round(datetime.fromisoformat(iso).timestamp() * 1000) if iso else None


def status(record: Record) -> str:
    """The run's status in MLflow's words."""
    return {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}.get(record.status, "RUNNING")


def differs(there: float | None, here: float) -> bool:
    """Whether MLflow's latest value is another one; it keeps an infinity as the largest number."""
    if there is None:
        return True
    if math.isnan(here) or math.isnan(there):
        return math.isnan(here) != math.isnan(there)
    largest = 1.7976931348623157e308
    return max(-largest, min(largest, here)) != max(-largest, min(largest, there))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _cell(value: Any) -> Any:
    """Numbers and text stay; lists (shapes, replicas) become readable text."""
    return json.dumps(value) if isinstance(value, list | dict) else value
