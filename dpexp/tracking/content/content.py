"""Content: maps a Record to MLflow's entities. Pure functions that need neither mlflow nor a store.

====================  =====================================================================
params                the flat config
metrics by step       ``loss``, ``time_ms/step``, ``time_ms/<phase>``, ``system/<name>``
metrics by epoch      what the loop measured once an epoch, such as ``accuracy``
single metrics        ``summary/…``, with bytes moved, peak memory and errors; ``HEADLINES``
tags                  ``dpexp.…``, ``git.…``, ``host``, the note
tables                ``shapes.json``, ``device_map.json``
artifacts             ``record.json``, ``long_values.json``, the figures; a sweep's comparison in ``report/``
====================  =====================================================================

A point's timestamp is that of its journal line, not that of its delivery. A point that is delivered twice is
therefore one row of MLflow's table, whose key consists of run, name, step, timestamp and value.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dpexp.config.printable import printable
from dpexp.record.figures.figure import At
from dpexp.record.figures.registry import figures
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_ROWS = 10_000
"""Rows of a table at most, because MLflow's pages load it whole."""
LONG_VALUES = "long_values.json"
RUN_ID_TAG = "dpexp.run_id"
"""The tag that says of which run an MLflow run is."""
KINDS = ("steps", "phases", "metrics", "system")
"""The keys of a Record, and of ``system.jsonl``, with lists that are metrics by step."""
_SUMMARY = ("step_ms", "samples_per_s", "phases_ms", "phase_coverage", "missing_steps", "nonfinite")
"""The keys of a summary that every delivery wrote from the first version on. An earlier end of the run may
have had them, and the last has not."""
SPEED_UP = "speed_up"
"""The metric of a sweep's run: an addition, which ``speed_ups`` writes."""
HEADLINES = tuple(figure.name for figure in figures(At.COLUMN) if figure.name != SPEED_UP)
"""Figures by which runs are compared, rounded: the columns of MLflow's list of runs, with ``speed_up``."""
_COLUMNS = (
    *(f"metrics.`{figure.name}`" for figure in figures(At.COLUMN)),
    *(f"tags.`dpexp.{key}`" for key in ("strategy", "execution", "verified")),
)
VIEW = "dpexp"
"""The name of the view of an experiment's runs that dpexp's links open."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_STATE = json.dumps({"selectedColumns": _COLUMNS})
"""The experiment's tag, and its value, in which MLflow keeps that view: which columns it shows."""
_TAGS = ("host", "os", "python", "torch", "cuda", "cpu")
"""The keys of a Record's environment that are tags."""
_FIRST = ("module", "inputs", "outputs", "parameter", "device", "replica", "batch")
"""The first columns of tables."""
_METRICS = {"steps.loss": "loss", "steps.time_ms": "time_ms/step", "metrics.loss": "epoch/loss"}


class Point(NamedTuple):
    """One value of a metric, as ``mlflow.entities.Metric`` has it; the timestamp in ms since 1970."""

    key: str
    value: float
    timestamp: int
    step: int


def metric_key(list_key: str) -> str | None:
    """The metric that shows a list of the Record: ``steps.loss`` -> ``loss``; None for other lists."""
    if list_key in _METRICS:
        return _METRICS[list_key]
    kind, _, name = list_key.partition(".")
    prefix = {"phases": "time_ms/", "metrics": "", "system": "system/"}.get(kind)
    return None if prefix is None else valid_key(prefix + name)


def valid_key(key: str) -> str:
    """The key with ``_`` for what MLflow refuses in it, at most 250 characters long.

    MLflow takes a key for a path, which must not have empty parts, nor any of dots.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", key)[:MAX_KEY].split("/")
    return "/".join("_" if part.strip(".") == "" else part for part in parts)


def series(record: Record) -> dict[str, list[Any]]:
    """The lists of the Record that are metrics by step, by metric, without items that are not numbers."""
    found: dict[str, list[Any]] = {}
    for kind in KINDS:
        for name, values in getattr(record, kind, {}).items():
            key = metric_key(f"{kind}.{name}")
            if key is not None and isinstance(values, list):
                found.setdefault(key, values)
    return found


def expected_metrics(record: Record | RecordView) -> dict[str, dict[int, float]]:
    """What MLflow must have of a Record that was delivered: {metric: {step: value}}, each point once.

    The samples in ``system.jsonl`` (``system/…``) are not in the Record.
    """
    by_step = {
        key: {
            step: stored_value(value) for step, value in enumerate(values) if isinstance(value, int | float)
        }
        for key, values in series(RecordView.of(record).record).items()
    }
    single = {key: {0: stored_value(value)} for key, value in summary_metrics(record).items()}
    return {key: points for key, points in (by_step | single).items() if points}


def stored_value(value: float) -> float:
    """The value as MLflow stores it: an infinity as the largest number; nan stays nan."""
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else float(value)


def is_same_value(one: float, other: float) -> bool:
    """Whether both are stored as the same value; nan is nan."""
    first, second = stored_value(one), stored_value(other)
    return math.isclose(first, second, rel_tol=1e-9) or (math.isnan(first) and math.isnan(second))


def summary_metrics(record: Record | RecordView) -> dict[str, float]:
    """Every number of the summary as the Record has it, under its path: ``summary/step_ms/median``.

    Beside it the figures that are metrics only, and ``HEADLINES``. None of a run that was killed and can
    resume: its numbers are not final, and a metric keeps every value.
    """
    view = RecordView.of(record)
    record = view.record
    can_resume = record.config.get("snapshot_every") or record.config.get("resume")
    if record.status == "killed" and can_resume:
        return {}
    metrics = {figure.name: figure.summarized(view) for figure in figures(At.METRIC)}
    columns = {figure.name: figure.rounded(view) for figure in figures(At.COLUMN)}
    known = {name: float(value) for name, value in columns.items() if value is not None}
    return dict(_numbers("summary", record.summary | metrics)) | known


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{path}/{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield valid_key(path), float(value)


def is_own_metric(record: Record, key: str) -> bool:
    """Whether dpexp writes this metric, now or at an earlier end of the run; others are the user's."""
    kind, _, name = key.partition("/")
    if kind == "summary":
        registered = (figure.name for figure in figures(At.SUMMARY | At.METRIC))
        own = map(valid_key, (*registered, *record.summary))
        return name.partition("/")[0] in set(own)
    return kind in ("system", "time_ms") or key in HEADLINES or key in series(record)


def is_of_summary(key: str) -> bool:
    """Whether the metric has one point, of the run's end."""
    return key in HEADLINES or key.startswith("summary/")


def may_lack(key: str) -> bool:
    """Whether a complete MLflow run may lack this metric: what delivered it may not have known it."""
    kind, _, name = key.partition("/")
    return key in HEADLINES or (kind == "summary" and name.partition("/")[0] not in _SUMMARY)


def is_own_tag(key: str) -> bool:
    """Whether dpexp or MLflow itself writes this tag; others are the user's."""
    return key in _TAGS or key.startswith(("dpexp.", "git.", "mlflow."))


def params(record: Record) -> dict[str, str]:
    """The flat config as text, at full length.

    Without ``resume``: MLflow changes no param, and the run that a resumed one continues had none.
    """
    return {key: _text(value) for key, value in record.config.items() if key != "resume"}


def tags(record: Record) -> dict[str, str]:
    """What runs are searched and grouped by, at full length."""
    environment, git = record.environment, record.environment.get("git") or {}
    verification, error = record.verification, record.error
    shown = [{"path": name, "type": "table"} for name in _rows(record)]  # MLflow shows these as tables
    values: dict[str, Any] = {
        RUN_ID_TAG: record.run_id,
        "dpexp.schema": record.schema,
        "dpexp.strategy": record.strategy,
        "dpexp.execution": record.execution,
        "dpexp.status": record.status,
        "dpexp.verified": verification.get("passed") if verification.get("checked") else "not checked",
        "dpexp.config_digest": record.config_digest,
        "dpexp.devices": ", ".join(record.devices.get("used", [])),
        **{f"git.{key}": value for key, value in git.items()},
        **{key: environment.get(key) for key in _TAGS},
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(map(str, environment.get("argv") or [])) or None,
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        "mlflow.loggedArtifacts": json.dumps(shown) if shown else None,
        "dpexp.error": f"{error.get('type')}: {error.get('message')}" if error else None,
        "dpexp.tables": _cut_tables(record),
        "dpexp.damage": "; ".join(record.damage),
        "dpexp.nonfinite": record.summary.get("nonfinite"),
    }
    return {key: _text(value) for key, value in values.items() if value not in (None, "")}


def truncate(text: str, limit: int, file: str) -> str:
    """The text where it is short enough, else its beginning and the artifact that holds all of it."""
    mark = f"… (full text in {file})"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def fit(values: Mapping[str, str], limit: int) -> tuple[dict[str, str], dict[str, str]]:
    """The values with keys and lengths that MLflow accepts, and the originals of those it does not."""
    fitted = {valid_key(key): truncate(printable(value), limit, LONG_VALUES) for key, value in values.items()}
    changed = {key: value for key, value in values.items() if fitted.get(key) != value}
    return fitted, changed


def record_tables(record: Record) -> dict[str, str]:
    """The tables' artifacts by file name; only those with rows, and of many rows the first."""
    return {name: table(rows[:MAX_ROWS]) for name, rows in _rows(record).items()}


def _rows(record: Record) -> dict[str, list[Row]]:
    found = {"shapes.json": record.shapes, "device_map.json": record.device_map}
    return {name: rows for name, rows in found.items() if rows}


def _cut_tables(record: Record) -> str:
    """Which tables are not complete."""
    cut = {name: len(rows) for name, rows in _rows(record).items() if len(rows) > MAX_ROWS}
    return "; ".join(
        f"{name}: the first {MAX_ROWS} of {n} rows, all in record.json" for name, n in cut.items()
    )


def table(rows: list[Row]) -> str:
    """Rows as the JSON of ``log_table``, which MLflow shows as a table and compares across runs.

    What readers look for comes first.
    """
    found = dict.fromkeys(key for row in rows for key in row)
    columns = [*(key for key in _FIRST if key in found), *(key for key in found if key not in _FIRST)]
    data = [[_cell(row.get(key)) for key in columns] for row in rows]
    return json.dumps({"columns": columns, "data": data})


def to_epoch_ms(iso: str | None) -> int | None:
    """An ISO 8601 time in ms since 1970; None for no time. MLflow has none before that."""
    return max(0, round(datetime.fromisoformat(iso).timestamp() * 1000)) if iso else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
