"""Metrics: the figures of a run that an experiment's claims, tables and pictures are made of.

A *timed* metric has samples, depends on the machine and is compared by intervals. Every other metric is a
fact of the run, the same on any machine, and is compared as it is.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError, unknown
from dpexp.record.batches import parameter_bytes, replicated_bytes
from dpexp.record.figures import At, Figure, figures, typical_of
from dpexp.record.steps import present, spread, typical
from dpexp.record.view import RecordView
from dpexp.report import intervals, units
from dpexp.report.intervals import Interval
from dpexp.study.records import Rounds


@dataclass(frozen=True)
class Metric:
    """One kind of figure: ``of(run, argument)`` gives its samples if it is timed, else its value."""

    title: str
    of: Callable[[RecordView, str], Any]
    show: Callable[[Any], str]
    is_timed: bool = False


def _of_figure(figure: Figure) -> Metric:
    """A figure that reports show, too; one whose runs have a mean varies from run to run, as times do."""
    varies = figure.of_runs is typical_of

    def of(run: RecordView, _: str) -> Any:
        number = figure.number(run)
        if not varies:
            return math.nan if number is None else number
        return figure.of(run) if figure.is_sampled else present([number])

    return Metric(figure.title, of, lambda value: units.text(value, figure.unit), varies)


def _sample_us(run: RecordView, _: str) -> list[float]:
    usual = run.usual
    return [] if usual is None else [1000 * ms / usual.rows for ms in usual.times]


def _peak(run: RecordView, device: str) -> list[float]:
    """One number, which is another in each run."""
    memory = run.record.memory
    most = memory.get(device) if device else max(memory.values(), default=None)
    return [] if most is None else [float(most)]


def _error(run: RecordView, kind: str) -> float:
    return run.errors.get(f"{kind}_error", math.nan)


def _split(run: RecordView, _: str) -> str:
    return "; ".join(units.repeated(map(str, group.split or [group.rows])) for group in run.batches)


def _replica_shapes(run: RecordView, module: str) -> str:
    """Inputs and outputs of a module in its replicas, batch by batch."""
    return "; ".join(
        " -> ".join(units.call_texts(call))
        for group in run.batches
        for call in group.calls
        if call.module == module and call.scope == ("replica" if group.split else "outside")
    )


def _verified(run: RecordView, _: str) -> bool | None:
    """None if nothing was checked: a program that only measures, or --no-check."""
    verification = run.record.verification
    return verification.get("passed") is True if verification.get("checked") else None


def _loss(run: RecordView, samples: str) -> float:
    """The mean loss of the last ``samples`` samples."""
    losses, rows = run.record.steps["loss"], run.record.steps["samples"]
    wanted, total, weight = int(samples or 1), 0.0, 0
    for loss, count in zip(reversed(losses), reversed(rows), strict=True):
        if loss is None or count is None:  # a program that trains nothing
            continue
        total, weight = total + loss * count, weight + count
        if weight >= wanted:
            break
    return total / weight


def _usual_rows(run: RecordView, _: str) -> int:
    return 0 if run.usual is None else run.usual.rows


def _metric(run: RecordView, name: str) -> list[float]:
    return present(run.record.metrics.get(name, []))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _yes(verified: bool | None) -> str:
    return "not checked" if verified is None else "yes" if verified else "NO"


METRICS: Mapping[str, Metric] = {
    **{figure.name: _of_figure(figure) for figure in figures(At.METRIC)},
    "sample_us": Metric("time per sample", _sample_us, lambda us: units.ms(us / 1000), True),
    "phase_ms": Metric("{}", lambda run, name: run.phase_samples.get(name, []), units.ms, True),
    "parameter_bytes": Metric("parameters", lambda run, _: parameter_bytes(run.record), units.size),
    "replicated_bytes": Metric(
        "copied to replicas per step", lambda run, _: replicated_bytes(run.record), units.size
    ),
    "peak_bytes": Metric("peak memory of {}", _peak, units.size, True),
    "error": Metric("error of {}s", _error, units.error),
    "time_ms": Metric("{}", lambda run, name: _metric(run, f"{name}_ms"), units.ms, True),
    "wall_s": Metric(
        "whole process",
        lambda run, _: _metric(run, "process_s"),
        lambda seconds: units.ms(1000 * seconds),
        True,
    ),
    "samples": Metric("{}, in turn", lambda run, name: _metric(run, name), units.ratio, True),
    "split": Metric("rows per device, by batch", _split, str),
    "shapes": Metric("inputs -> outputs of {}", _replica_shapes, str),
    "verified": Metric("equal to a single device", _verified, _yes),
    "loss": Metric("loss", _loss, _number),
    "metric": Metric("{}", lambda run, name: float(_metric(run, name)[-1]), _number),
    "weights": Metric("weights", lambda run, _: str(run.record.digest.get("weights"))[:12], str),
    "steps": Metric("steps", lambda run, _: len(present(run.record.steps["time_ms"])), str),
    "rows": Metric("batch", _usual_rows, str),
}


def metric(name: str) -> tuple[Metric, str]:
    """The metric of a name such as ``step_ms`` or ``phase_ms:scatter``, and the text after the colon."""
    base, _, argument = name.partition(":")
    if base not in METRICS:
        raise unknown("metric", base, METRICS)
    return METRICS[base], argument


def metric_title(name: str) -> str:
    """The title of the metric's column."""
    found, argument = metric(name)
    return found.title.format(argument or "the model")


def samples(name: str, runs: Rounds) -> dict[int, list[float]]:
    """{round: its samples} of a timed metric, of the runs that have any."""
    found, argument = metric(name)
    values = {number: found.of(run, argument) for number, run in runs.items()}
    return {number: kept for number, kept in values.items() if kept}


def medians(name: str, runs: Rounds) -> dict[int, float]:
    """{round: the run's median} of a timed metric, of the runs that have it."""
    return {number: statistics.median(kept) for number, kept in samples(name, runs).items()}


def value(name: str, runs: Rounds) -> Any:
    """The value of a metric: of a timed one the geometric mean of the runs' medians, else that of every run.

    Raises ConfigError if the runs disagree in a fact, or none has the metric.
    """
    found, argument = metric(name)
    if found.is_timed:
        figures = medians(name, runs)
        if not figures:
            raise ConfigError(f"no run has a {name}")
        return typical(figures.values())
    first, *others = (found.of(run, argument) for run in runs.values())
    if different := [other for other in others if other == other and other != first]:
        raise ConfigError(f"the runs disagree in {name}: {sorted({first, *different})}")
    return first


def interval(name: str, runs: Rounds, against: Rounds | None = None) -> Interval | None:
    """A timed metric of a cell's runs, or its ratio to another's, with its 95% interval; None without any."""
    figures = medians(name, runs)
    if against is None:
        return intervals.of_runs(figures) if figures else None
    baseline = medians(name, against)
    return intervals.ratio_interval(figures, baseline) if figures and baseline else None


def table_cell(name: str, runs: Rounds) -> str:
    """The metric as a table shows it: a timed one with its interquartile range and count."""
    found, _ = metric(name)
    try:
        middle = value(name, runs)
    except ConfigError:
        return "-"
    if middle != middle:  # NaN: it is not known
        return "-"
    figures = (
        spread([each for run in samples(name, runs).values() for each in run]) if found.is_timed else None
    )
    if figures is None or figures["n"] == 1:
        return found.show(middle)
    return f"{found.show(middle)} [{found.show(figures['iqr'])}] {figures['n']}"
