"""A run's phase-timed steps as MLflow traces: its page shows the phases, and replicas side by side.

::

    step 17                      {rows: 30} -> {ms: 0.88}
      scatter                    {shapes: (30, 5), device: cpu} -> {shapes: 7 × (4, 5) + (2, 5), bytes: 520}
      parallel_apply
        replica 0 on cpu:0
        replica 1 on cpu:1

One to three steps: the typical one, and the last batch of an epoch where it was split differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dpexp.record import Record
from dpexp.report import units
from dpexp.report.analysis.timeline import Bar, Step, steps, typical

if TYPE_CHECKING:
    from mlflow.entities import LiveSpan

MS = 1_000_000
"""Nanoseconds in a millisecond."""


def log_trace(experiment_id: str, mlflow_run_id: str, record: Record, *, uri: str | None = None) -> int:
    """Log the Record's chosen steps as traces of the MLflow run; returns how many.

    ``uri`` is the store, by default MLflow's current one. Raises what MLflow raises.
    """
    import mlflow

    if uri is not None:
        mlflow.set_tracking_uri(uri)
    picked = chosen(steps(record))
    for step in picked:
        _log(step, experiment_id, mlflow_run_id, record)
    if picked:
        mlflow.flush_trace_async_logging()
    return len(picked)


def chosen(several: list[Step]) -> list[Step]:
    """The typical step, and the first step of the smallest batch where that is another size."""
    usual = typical(several)
    if usual is None:
        return []
    least = min(several, key=lambda step: (step.rows or 0, step.number))
    return [usual] if least.rows == usual.rows else [usual, least]


def _log(step: Step, experiment_id: str, mlflow_run_id: str, record: Record) -> None:
    import mlflow

    begin = _wall_ns(record) + round(step.start * MS)
    root = mlflow.start_span_no_context(
        f"step {step.number}" + (f", {step.rows} rows" if step.rows else ""),
        span_type="CHAIN",
        inputs={"strategy": record.strategy, "execution": record.execution, **_rows(step)},
        attributes={"dpexp.run_id": record.run_id, "dpexp.execution": record.execution},
        metadata={"mlflow.sourceRun": mlflow_run_id},
        experiment_id=experiment_id,
        start_time_ns=begin,
    )
    spans: list[tuple[Bar, LiveSpan]] = []
    for bar in step.bars:
        span = mlflow.start_span_no_context(
            bar.phase if bar.replica is None else f"replica {bar.replica} on {bar.device}",
            span_type="TASK" if bar.replica is None else "TOOL",
            parent_span=_around(bar, spans) or root,
            inputs=_inputs(bar),
            start_time_ns=begin + round(bar.start * MS),
        )
        spans.append((bar, span))
    for bar, span in reversed(spans):
        span.end(outputs=_outputs(bar), end_time_ns=begin + round(bar.end * MS))
    root.end(outputs={"ms": round(step.ms, 6)}, end_time_ns=begin + round(step.ms * MS))


def _rows(step: Step) -> dict[str, int]:
    return {} if step.rows is None else {"rows": step.rows}


def _around(bar: Bar, spans: list[tuple[Bar, LiveSpan]]) -> LiveSpan | None:
    """The span of the shortest phase that this bar lies inside of; of a replica, of its own phase."""
    outer = [
        (other, span)
        for other, span in spans
        if other.replica is None
        and other.start <= bar.start
        and bar.end <= other.end
        and (bar.replica is None or other.phase == bar.phase)
    ]
    return min(outer, key=lambda pair: pair[0].ms)[1] if outer else None


def _inputs(bar: Bar) -> dict[str, Any]:
    """``replica`` is left out for a phase."""
    told: dict[str, Any] = {"device": bar.device, "shapes": _shapes(bar.inputs)}
    return told if bar.replica is None else {"replica": bar.replica} | told


def _outputs(bar: Bar) -> dict[str, Any]:
    told: dict[str, Any] = {"device": bar.device, "shapes": _shapes(bar.outputs), "ms": round(bar.ms, 6)}
    return told if bar.bytes is None else told | {"bytes": bar.bytes}


def _shapes(several: Iterable[Sequence[int]]) -> str:
    """``(30, 5)``, ``7 × (4, 5) + (2, 5)``: one line, where MLflow would spread a list."""
    return units.repeated(map(units.shape, several))


def _wall_ns(record: Record) -> int:
    """Where the phase-timed steps are laid on the calendar: their last one ends when the run ended."""
    moment = record.ended or record.started
    if not moment:
        return 0
    last = max((row["end_us"] for row in record.timeline), default=0.0)
    return round(datetime.fromisoformat(moment).timestamp() * 1e9 - last * 1e3)
