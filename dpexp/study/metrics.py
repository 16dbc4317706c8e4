"""Metrics: the figures of a run that claims, tables and pictures of an experiment are made of.

A *timed* metric has samples, belongs to the machine and is compared by intervals. Every other metric is a
fact of the run, the same on any machine, and is compared as it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.config import ConfigError, unknown
from dpexp.record import Record, spread
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import samples as phase_samples
from dpexp.report.analysis.shapes import batches
from dpexp.report.analysis.statistics import usual_times
from dpexp.study.experiment import Measured


@dataclass(frozen=True)
class Metric:
    """One kind of figure: ``of(run, argument)`` gives its samples if it is timed, else its value."""

    title: str
    of: Callable[[Measured, str], Any]
    show: Callable[[Any], str]
    is_timed: bool = False


def _step_ms(run: Measured, _: str) -> list[float]:
    return usual_times(run.record)[1]


def _sample_us(run: Measured, _: str) -> list[float]:
    rows, times = usual_times(run.record)
    return [1000 * ms / rows for ms in times]


def _phase_ms(run: Measured, phase: str) -> list[float]:
    return phase_samples(run.record, phase) if phase in run.record.phases else []


def _wall_s(run: Measured, _: str) -> list[float]:
    """What the sweep measured; a program that makes its Record afterwards says itself when it was done."""
    if "process_s" in run.record.metrics:
        return run.record.metrics["process_s"]
    return [] if run.wall_s is None else [run.wall_s]


def _peak(run: Measured, device: str) -> list[float]:
    return [float(run.record.memory[device or "cpu"])]


def _moved(run: Measured, what: str) -> int:
    return sum(move.bytes for move in layout.moves(run.record) if what in ("", move.what))


def _split(run: Measured, _: str) -> str:
    return "; ".join(units.repeated(map(str, group.split or [group.rows])) for group in batches(run.record))


def _replica_shapes(run: Measured, module: str) -> str:
    """Inputs and outputs of a module in its replicas, batch by batch."""
    told = []
    for group in batches(run.record):
        for call in group.calls:
            if call.module == module and call.scope == ("replica" if group.split else "outside"):
                told.append(" -> ".join(call.texts()))
    return "; ".join(told)


def _verified(run: Measured, _: str) -> bool | None:
    """None where nothing was checked: a program that only measures, or --no-check."""
    verification = run.record.verification
    return verification.get("passed") is True if verification.get("checked") else None


def _yes(verified: bool | None) -> str:
    return "not checked" if verified is None else "yes" if verified else "NO"


def _error(run: Measured, kind: str) -> float:
    found = run.record.verification.get(f"{kind}_error")
    return math.nan if found is None else float(found)


def _loss(run: Measured, samples: str) -> float:
    """The mean loss of the last so many samples."""
    losses, rows = run.record.steps["loss"], run.record.steps["samples"]
    wanted, total, weight = int(samples or 1), 0.0, 0
    for loss, count in zip(reversed(losses), reversed(rows), strict=True):
        total, weight = total + loss * count, weight + count
        if weight >= wanted:
            break
    return total / weight


def _metric(run: Measured, name: str) -> float:
    return float(run.record.metrics[name][-1])


def _samples(run: Measured, name: str) -> list[float]:
    """A program's own samples of a ratio, taken in turn."""
    return run.record.metrics.get(name, [])


def _us(value: float) -> str:
    return units.ms(value / 1000)


def _seconds(value: float) -> str:
    return units.ms(1000 * value)


def _tiny(value: float) -> str:
    return "-" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


METRICS: Mapping[str, Metric] = {
    "step_ms": Metric("step", _step_ms, units.ms, True),
    "sample_us": Metric("time per sample", _sample_us, _us, True),
    "phase_ms": Metric("{}", _phase_ms, units.ms, True),
    "wall_s": Metric("whole process", _wall_s, _seconds, True),
    "peak_bytes": Metric("peak memory of the process", _peak, units.size, True),
    "samples": Metric("{}, in turn", _samples, units.ratio, True),
    "moved_bytes": Metric("moved a step", _moved, units.size),
    "parameter_bytes": Metric("parameters", lambda run, _: layout.parameter_bytes(run.record), units.size),
    "replicated_bytes": Metric(
        "copied to replicas a step", lambda run, _: layout.replicated_bytes(run.record), units.size
    ),
    "split": Metric("rows a device, by batch", _split, str),
    "shapes": Metric("inputs -> outputs of {}", _replica_shapes, str),
    "verified": Metric("equal to a single device", _verified, _yes),
    "error": Metric("error of {}s", _error, _tiny),
    "loss": Metric("loss", _loss, _plain),
    "metric": Metric("{}", _metric, _plain),
    "weights": Metric("weights", lambda run, _: str(run.record.digest.get("weights"))[:12], str),
    "execution": Metric("execution", lambda run, _: run.record.execution, str),
    "steps": Metric("steps", lambda run, _: len(run.record.steps["time_ms"]), str),
    "rows": Metric("batch", lambda run, _: usual_times(run.record)[0], str),
    "model": Metric("model", lambda run, _: str(run.record.config.get("model")), str),
    "strategy": Metric("strategy", lambda run, _: run.record.strategy, str),
}


def metric(name: str) -> tuple[Metric, str]:
    """The metric of a name as ``step_ms`` or ``phase_ms:scatter``, and what stands after the colon."""
    base, _, argument = name.partition(":")
    if base not in METRICS:
        raise unknown("metric", base, METRICS)
    return METRICS[base], argument


def title(name: str) -> str:
    """The head of the metric's column."""
    found, argument = metric(name)
    return found.title.format(argument or "the model")


def samples(name: str, runs: Sequence[Measured]) -> list[list[float]]:
    """The samples of a timed metric, a list a run; runs without any are left out."""
    found, argument = metric(name)
    return [each for run in runs if (each := found.of(run, argument))]


def value(name: str, runs: Sequence[Measured]) -> Any:
    """The value of a metric: the median of all samples of a timed one, else what every run says.

    Raises ConfigError where the runs of a fact disagree, or none has the metric.
    """
    found, argument = metric(name)
    if found.is_timed:
        pooled = [sample for run in samples(name, runs) for sample in run]
        if not pooled:
            raise ConfigError(f"no run of cell '{runs[0].cell}' has a {name}")
        return statistics.median(pooled)
    said = [found.of(run, argument) for run in runs]
    if any(each != said[0] for each in said[1:] if each == each):
        raise ConfigError(f"the runs of cell '{runs[0].cell}' disagree in {name}: {sorted(set(said))}")
    return said[0]


def cell(name: str, runs: Sequence[Measured]) -> str:
    """The metric as a table shows it: a timed one with its interquartile range and count."""
    found, _ = metric(name)
    try:
        middle = value(name, runs)
    except ConfigError:
        return "-"
    if not found.is_timed:
        return found.show(middle)
    figures = spread([sample for run in samples(name, runs) for sample in run])
    assert figures is not None
    if figures["n"] == 1:
        return found.show(middle)
    return f"{found.show(middle)} [{found.show(figures['iqr'])}] {figures['n']}"


def records(runs: Mapping[str, Sequence[Measured]]) -> list[Record]:
    """The Records of all runs."""
    return [run.record for each in runs.values() for run in each]
