"""A run's phase-timed steps as MLflow traces, whose timeline shows the phases and replicas side by side.

::

    step 17                      {rows: 30} -> {ms: 0.88}
      scatter                    {shapes: (30, 5), device: cpu} -> {shapes: 7 × (4, 5) + (2, 5), bytes: 520}
      parallel_apply
        replica 0 on cpu:0
        replica 1 on cpu:1

Two steps: the typical one, and the smallest batch (the last of an epoch) where its size differs, else the
slowest step. A run with a single phase-timed step has one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from dpexp.config.ranges import plural
from dpexp.record.figures.figure import rounded
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis.timeline import Bar, TimelineStep, steps, typical_step
from dpexp.tracking.errors import StoreError, short_message

if TYPE_CHECKING:
    from mlflow.entities import LiveSpan, Trace

MS = 1_000_000  # nanoseconds
_RUN_ID = "dpexp.run_id"
_FAILURE = "Failed to send trace to MLflow backend"


def log_traces(uri: str, experiment_id: str, mlflow_run_id: str, record: Record | RecordView) -> None:
    """Log selected steps of the Record as traces of the MLflow run. Raises StoreError where that failed."""
    import mlflow

    # Of several workers, one may send a trace before its spans: then these are an artifact, too.
    os.environ.setdefault("MLFLOW_ASYNC_TRACE_LOGGING_MAX_WORKERS", "1")
    mlflow.set_tracking_uri(uri)
    view = RecordView.of(record)
    with _failures() as failures:
        for step in select_steps(steps(view)):
            _log(step, experiment_id, mlflow_run_id, view.record)
        mlflow.flush_trace_async_logging()
    if failures:
        raise StoreError(short_message(failures[0]))


def span_counts(view: RecordView) -> dict[str, int]:
    """{name of each trace that ``log_traces`` logs: the number of its spans}."""
    return {_name(step): 1 + len(step.bars) for step in select_steps(steps(view))}


def name_of(trace: Trace) -> str:
    """The name of the trace's root span."""
    return str(trace.info.tags.get("mlflow.traceName", ""))


def is_own(trace: Trace) -> bool:
    """Whether this version of ``log_traces`` has logged the trace, not a user."""
    return _RUN_ID in trace.info.trace_metadata


@contextmanager
def _failures() -> Iterator[list[Exception]]:
    """What MLflow failed on to store a trace: it only logs that, in a thread of its own."""
    failures: list[Exception] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith(_FAILURE):
                failures.append(RuntimeError(text.removeprefix(_FAILURE).lstrip(": ")))

    logger, handler = logging.getLogger("mlflow.tracing"), Kept(logging.WARNING)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield failures
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def select_steps(candidates: list[TimelineStep]) -> list[TimelineStep]:
    """The typical step, and the first with the smallest batch where its size differs, else the slowest."""
    usual = typical_step(candidates)
    if usual is None:
        return []
    other = min(candidates, key=lambda step: (step.rows or 0, step.number))
    if other.rows == usual.rows:
        other = max(
            (step for step in candidates if step is not usual), key=lambda step: step.ms, default=usual
        )
    return [usual] if other is usual else [usual, other]


def _log(step: TimelineStep, experiment_id: str, mlflow_run_id: str, record: Record) -> None:
    import mlflow

    rows = {} if step.rows is None else {"rows": step.rows}
    begin = _begin_ns(record) + round(step.start * MS)
    root = mlflow.start_span_no_context(
        _name(step),
        span_type="CHAIN",
        inputs={"strategy": record.strategy, "execution": record.execution, **rows},
        attributes={_RUN_ID: record.run_id, "dpexp.execution": record.execution},
        metadata={"mlflow.sourceRun": mlflow_run_id, _RUN_ID: record.run_id},
        experiment_id=experiment_id,
        start_time_ns=begin,
    )
    spans: list[tuple[Bar, LiveSpan]] = []
    for bar in step.bars:
        replica = {} if bar.replica is None else {"replica": bar.replica}
        shapes = units.repeated(map(units.shape, bar.inputs))
        span = mlflow.start_span_no_context(
            bar.phase if bar.replica is None else f"replica {bar.replica} on {bar.device}",
            span_type="TASK" if bar.replica is None else "TOOL",
            parent_span=_enclosing(bar, spans) or root,
            inputs={**replica, "device": bar.device, "shapes": shapes},
            start_time_ns=begin + round(bar.start * MS),
        )
        spans.append((bar, span))
    for bar, span in reversed(spans):
        size = {} if bar.bytes is None else {"bytes": bar.bytes}
        shapes = units.repeated(map(units.shape, bar.outputs))
        outputs = {"device": bar.device, "shapes": shapes, "ms": rounded(bar.ms), **size}
        span.end(outputs=outputs, end_time_ns=begin + round(bar.end * MS))
    root.end(outputs={"ms": rounded(step.ms)}, end_time_ns=begin + round(step.ms * MS))


def _name(step: TimelineStep) -> str:
    return f"step {step.number}" + (f", {plural(step.rows, 'row')}" if step.rows else "")


def _enclosing(bar: Bar, spans: list[tuple[Bar, LiveSpan]]) -> LiveSpan | None:
    """The span of the shortest phase that contains this bar; for a replica, the span of its phase."""
    outer = [
        (other, span)
        for other, span in spans
        if other.replica is None
        and other.start <= bar.start
        and bar.end <= other.end
        and (bar.replica is None or other.phase == bar.phase)
    ]
    return min(outer, key=lambda pair: pair[0].ms)[1] if outer else None


def _begin_ns(record: Record) -> int:
    """When the phase-timed steps began, in ns since 1970, if the last one ended when the run ended."""
    ended = record.ended or record.started
    if not ended:
        return 0
    last = max((row["end_us"] for row in record.timeline), default=0.0)
    return max(0, round(datetime.fromisoformat(ended).timestamp() * 1e9 - last * 1e3))
