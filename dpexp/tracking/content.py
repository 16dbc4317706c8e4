"""Content: maps a Record to MLflow's entities. Pure functions that need neither mlflow nor a store.

====================  =====================================================================
params                the flat config, without labels and without what is at its default or empty
metrics by step       ``loss``, ``time_ms/step``, ``time_ms/<phase>``; times are rounded
metrics by epoch      what the loop measured once per epoch, such as ``accuracy``, and what a user logs
single metrics        at most ``MOST_SINGLE``, rounded: ``step_ms``, ``phases_ms/<phase>`` and the like
tags                  ``dpexp.…``, ``git.…``, ``host``, the note
tables                ``shapes.json``, ``device_map.json``
artifacts             ``record.json``, the figures; a sweep's comparison in ``report/``
====================  =====================================================================

MLflow compares runs by the last value of a metric, so what is compared has a name of its own beside its
series.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dpexp.config import names
from dpexp.config.options import default_values
from dpexp.config.printable import printable
from dpexp.config.run_config import FILING, RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.config.words import listed
from dpexp.record.figures import At, figures, rounded
from dpexp.record.journal import PLAN_STRATEGY, SWEEP_STRATEGY
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_ROWS = 10_000
"""Rows of a table at most, because MLflow's pages load it whole; ``record.json`` has all."""
RUN_ID_TAG = "dpexp.run_id"
"""The tag that says of which run an MLflow run is."""
VIEW = "dpexp"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The tag of an experiment with a view of its run list: for MLflow's menu, and for links that name it."""
SPEED_UP = "speed_up"
"""The metric of a sweep's run: the speed-up over its single device, which only the sweep's Record has."""
MOST_PHASES, MOST_SINGLE = 6, 20
"""Of more phases the longest are metrics; ``record.json`` has all."""
_MACHINE = ("host", "os", "python", "torch", "cuda", "cpu")
"""The keys of a Record's environment that are tags."""
_SERIES = {"steps.loss": "loss", "steps.time_ms": "time_ms/step"}
_OWN = {*_SERIES.values(), *(figure.name for figure in figures(At.METRIC))}
_OWN_GROUPS = ("time_ms/", "phases_ms/", "system/")
"""The metrics of dpexp, and those of MLflow on the machine; a user's metric is kept apart from them."""
_FIRST = ("module", "inputs", "outputs", "parameter", "device", "replica", "batch")
"""The first columns of tables."""


class Point(NamedTuple):
    """One value of a metric, as ``mlflow.entities.Metric`` has it; the timestamp in ms since 1970."""

    key: str
    value: float
    timestamp: int
    step: int


def metric_key(list_key: str, taken: Collection[str | None] = ()) -> str | None:
    """The metric that shows a list of the Record: ``steps.loss`` -> ``loss``; None for other lists.

    A user's metric whose name is dpexp's, or that of a list before it (``taken``), is ``user/NAME``.
    """
    if list_key in _SERIES:
        return _SERIES[list_key]
    kind, _, name = list_key.partition(".")
    prefix = {"phases": "time_ms/", "metrics": ""}.get(kind)
    if prefix is None:
        return None
    key = valid_key(prefix + name)
    while key in taken or (kind == "metrics" and (key in _OWN or key.startswith(_OWN_GROUPS))):
        key = valid_key(f"user/{key}")
    return key


def metric_value(list_key: str, value: float) -> float:
    """A number of a list as MLflow gets it: times rounded, losses and a user's metrics as they are."""
    return rounded(value) if list_key == "steps.time_ms" or list_key.startswith("phases.") else float(value)


def valid_key(key: str) -> str:
    """The key with ``_`` for what MLflow refuses in it, at most 250 characters long.

    MLflow takes a key for a path, which must not have empty parts, nor any of dots.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", key)[:MAX_KEY].split("/")
    return "/".join("_" if part.strip(".") == "" else part for part in parts)


def summary_metrics(record: Record | RecordView) -> dict[str, float]:
    """The single metrics: figures, and the medians of the longest phases, rounded."""
    view = RecordView.of(record)
    single = {figure.name: figure.rounded(view) for figure in figures(At.METRIC)}
    known = {name: float(value) for name, value in single.items() if value is not None}
    longest = sorted(view.phase_medians.items(), key=lambda phase: phase[1], reverse=True)[:MOST_PHASES]
    return known | {valid_key(f"phases_ms/{name}"): rounded(median) for name, median in longest}


def placeholders(record: Record, at: int) -> list[Point]:
    """The figures that stand first on a run's page, which has metrics in the order in which they came.

    They are known at the end; until then they are NaN. A sweep has no steps of its own.
    """
    names = () if record.strategy in (SWEEP_STRATEGY, PLAN_STRATEGY) else ("step_ms", "samples_per_s")
    return [Point(name, math.nan, at, 0) for name in names]


def speed_ups(sweep: Record) -> dict[str, Point]:
    """{run id: the metric ``SPEED_UP`` of that run}, with the time at which the sweep ended."""
    rows, ended = sweep.summary.get("speed_ups") or [], to_epoch_ms(sweep.ended) or 0
    return {row["run"]: Point(SPEED_UP, float(row["speed_up"]), ended, 0) for row in rows}


def params(record: Record) -> dict[str, str]:
    """The flat config as text, at full length, by which MLflow compares runs.

    Without names and delivery, which are not of the computation, and without options that are empty or at
    their default.
    """
    options = STRATEGY_OPTIONS.get(str(record.config.get("strategy")))  # that of a watched loop has none
    defaults = default_values(RunConfig) | default_values(options) if options is not None else {}
    return {
        key: _text(value)
        for key, value in record.config.items()
        if key not in FILING and value not in (None, "") and not (key in defaults and defaults[key] == value)
    }


def tags(view: RecordView) -> dict[str, str]:
    """What runs are searched and grouped by, at full length."""
    record = view.record
    environment, git = record.environment, record.environment.get("git") or {}
    verification, error = record.verification, record.error
    values: dict[str, Any] = {
        RUN_ID_TAG: record.run_id,
        "dpexp.schema": record.schema,
        "dpexp.strategy": record.strategy,
        "dpexp.execution": record.execution,
        "dpexp.status": record.status,
        "dpexp.verified": _verified(verification),
        "dpexp.judged": "no" if view.noise is not None else None,
        "dpexp.config_digest": record.config_digest,
        "dpexp.devices": ", ".join(record.devices.get("used", [])),
        **{f"git.{key}": value for key, value in git.items()},
        **{key: environment.get(key) for key in _MACHINE},
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(map(str, environment.get("argv") or [])) or None,
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        # MLflow shows these as tables
        "mlflow.loggedArtifacts": [{"path": name, "type": "table"} for name in _rows(record)] or None,
        "dpexp.error": f"{error.get('type')}: {error.get('message')}" if error else None,
        "dpexp.damage": "; ".join(record.damage),
        "dpexp.nonfinite": record.summary.get("nonfinite"),
    }
    return {key: _text(value) for key, value in values.items() if value not in (None, "")}


def _verified(verification: Row) -> str:
    """``True``, ``True, but for random layers``, ``False`` or ``not checked``."""
    if not verification.get("checked"):
        return "not checked"
    gaps = verification.get("gaps")
    return f"{verification['passed']}{f', but for {listed(gaps)}' if gaps else ''}"


def run_list_view() -> str:
    """The value of ``VIEW_TAG``: the columns of a run list, as MLflow's pages save a view."""
    tag, metrics = "tags.`dpexp.verified`", ["metrics.`step_ms`", "metrics.`samples_per_s`"]
    state = {"selectedColumns": [tag, *metrics, "attributes.`Source`"]}
    return json.dumps({"name": VIEW, "createdAt": 0, "state": json.dumps(state)})


def fit(values: Mapping[str, str], limit: int) -> dict[str, str]:
    """The values with keys and lengths that MLflow accepts."""
    return {valid_key(key): truncate(printable(value), limit) for key, value in values.items()}


def dataset(record: Record) -> dict[str, str]:
    """The fields of MLflow's ``Dataset`` for the run's data; empty without any."""
    data = record.data
    if not data:
        return {}
    known = json.dumps(data, sort_keys=True, default=str).encode()
    return {
        "name": names.fitted(data.get("name") or record.config.get("data"), "data"),
        "digest": str(data.get("sha256") or hashlib.sha256(known).hexdigest())[:36],
        "source_type": "code",
        "source": json.dumps({"source": record.config.get("data"), "description": data.get("description")}),
        "profile": json.dumps({"num_rows": data.get("samples")}),
    }


def truncate(text: str, limit: int) -> str:
    """The text where it is short enough, else its beginning; the Record has all of it."""
    mark = "… (more in record.json)"
    return text if len(text) <= limit else text[: limit - len(mark)] + mark


def tables(record: Record) -> dict[str, str]:
    """The artifacts that MLflow shows as tables, by file name; only those with rows."""
    return {name: table(rows[:MAX_ROWS]) for name, rows in _rows(record).items()}


def table(rows: list[Row]) -> str:
    """Rows as the JSON of MLflow's ``log_table``, by which it compares runs; ``_FIRST`` comes first."""
    found = dict.fromkeys(key for row in rows for key in row)
    columns = [*(key for key in _FIRST if key in found), *(key for key in found if key not in _FIRST)]
    cells = ((row.get(key) for key in columns) for row in rows)
    data = [[json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in row] for row in cells]
    return json.dumps({"columns": columns, "data": data})


def to_epoch_ms(iso: str | None) -> int | None:
    """An ISO 8601 time in ms since 1970; None for no time. MLflow has none before that."""
    return max(0, round(datetime.fromisoformat(iso).timestamp() * 1000)) if iso else None


def _rows(record: Record) -> dict[str, list[Row]]:
    found = {"plan.json": record.plan, "shapes.json": record.shapes, "device_map.json": record.device_map}
    return {name: rows for name, rows in found.items() if rows}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and not any(isinstance(item, dict) for item in value):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)
