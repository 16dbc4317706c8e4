"""Metrics: the figures of a run that an experiment's claims, tables and pictures are made of.

A *timed* metric has samples, depends on the machine and is compared by intervals. Every other metric is a
fact of the run, the same on any machine, and is compared as it is.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError, unknown
from dpexp.record.batches import parameter_bytes, replicated_bytes
from dpexp.record.figures import At, Figure, figures, typical_of
from dpexp.record.steps import present, spread, typical
from dpexp.report import units
from dpexp.study.records import MeasuredRun


@dataclass(frozen=True)
class Metric:
    """One kind of figure: ``of(run, argument)`` gives its samples if it is timed, else its value."""

    title: str
    of: Callable[[MeasuredRun, str], Any]
    show: Callable[[Any], str]
    is_timed: bool = False


def _of_figure(figure: Figure) -> Metric:
    """A figure that reports show, too; one whose runs have a mean varies from run to run, as times do."""
    varies = figure.of_runs is typical_of

    def of(run: MeasuredRun, _: str) -> Any:
        number = figure.number(run.view)
        if not varies:
            return math.nan if number is None else number
        return figure.of(run.view) if figure.is_sampled else present([number])

    return Metric(figure.title, of, lambda value: units.text(value, figure.unit), varies)


def _sample_us(run: MeasuredRun, _: str) -> list[float]:
    usual = run.view.usual
    return [] if usual is None else [1000 * ms / usual.rows for ms in usual.times]


def _peak(run: MeasuredRun, device: str) -> list[float]:
    """One number, which is another in each run."""
    memory = run.record.memory
    most = memory.get(device) if device else max(memory.values(), default=None)
    return [] if most is None else [float(most)]


def _error(run: MeasuredRun, kind: str) -> float:
    return run.view.errors.get(f"{kind}_error", math.nan)


def _split(run: MeasuredRun, _: str) -> str:
    return "; ".join(units.repeated(map(str, group.split or [group.rows])) for group in run.view.batches)


def _replica_shapes(run: MeasuredRun, module: str) -> str:
    """Inputs and outputs of a module in its replicas, batch by batch."""
    return "; ".join(
        " -> ".join(units.call_texts(call))
        for group in run.view.batches
        for call in group.calls
        if call.module == module and call.scope == ("replica" if group.split else "outside")
    )


def _verified(run: MeasuredRun, _: str) -> bool | None:
    """None if nothing was checked: a program that only measures, or --no-check."""
    verification = run.record.verification
    return verification.get("passed") is True if verification.get("checked") else None


def _loss(run: MeasuredRun, samples: str) -> float:
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


def _usual_rows(run: MeasuredRun, _: str) -> int:
    return 0 if run.view.usual is None else run.view.usual.rows


def _metric(run: MeasuredRun, name: str) -> list[float]:
    return present(run.record.metrics.get(name, []))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _yes(verified: bool | None) -> str:
    return "not checked" if verified is None else "yes" if verified else "NO"


METRICS: Mapping[str, Metric] = {
    **{figure.name: _of_figure(figure) for figure in figures(At.METRIC)},
    "sample_us": Metric("time per sample", _sample_us, lambda us: units.ms(us / 1000), True),
    "phase_ms": Metric("{}", lambda run, name: run.view.phase_samples.get(name, []), units.ms, True),
    "parameter_bytes": Metric("parameters", lambda run, _: parameter_bytes(run.record), units.size),
    "replicated_bytes": Metric(
        "copied to replicas a step", lambda run, _: replicated_bytes(run.record), units.size
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
    "split": Metric("rows a device, by batch", _split, str),
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


def samples(name: str, runs: Sequence[MeasuredRun]) -> list[list[float]]:
    """The samples of a timed metric, a list for each run that has any."""
    found, argument = metric(name)
    return list(filter(None, (found.of(run, argument) for run in runs)))


def medians(name: str, runs: Sequence[MeasuredRun]) -> dict[int, float]:
    """{round: the run's median} of a timed metric, of the runs that have it."""
    found, argument = metric(name)
    values = {run.round: found.of(run, argument) for run in runs}
    return {number: statistics.median(kept) for number, kept in values.items() if kept}


def value(name: str, runs: Sequence[MeasuredRun]) -> Any:
    """The value of a metric: of a timed one the geometric mean of the runs' medians, else that of every run.

    Raises ConfigError if the runs disagree in a fact, or none has the metric.
    """
    found, argument = metric(name)
    if found.is_timed:
        figures = medians(name, runs)
        if not figures:
            raise ConfigError(f"no run of cell '{runs[0].cell}' has a {name}")
        return typical(figures.values())
    values = [found.of(run, argument) for run in runs]
    if any(other != values[0] for other in values[1:] if other == other):
        raise ConfigError(f"the runs of cell '{runs[0].cell}' disagree in {name}: {sorted(set(values))}")
    return values[0]


def table_cell(name: str, runs: Sequence[MeasuredRun]) -> str:
    """The metric as a table shows it: a timed one with its interquartile range and count."""
    found, _ = metric(name)
    try:
        middle = value(name, runs)
    except ConfigError:
        return "-"
    if middle != middle:  # NaN: it is not known
        return "-"
    figures = spread([sample for run in samples(name, runs) for sample in run]) if found.is_timed else None
    if figures is None or figures["n"] == 1:
        return found.show(middle)
    return f"{found.show(middle)} [{found.show(figures['iqr'])}] {figures['n']}"
