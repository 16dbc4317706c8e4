"""Metrics: the figures of a run that an experiment's claims, tables and pictures are made of.

A *timed* one varies from run to run, depends on the machine and is compared by intervals over runs. Every
other one is a fact, the same on any machine, and is compared as it is. Some are asked of a phase, a device or
a module, which stands after a colon: ``phase_ms:scatter``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dpexp.config.errors import ConfigError, unknown
from dpexp.record.batches import parameter_bytes, replicated_bytes
from dpexp.record.figures import At, Figure, figures, typical_of
from dpexp.record.steps import present, typical
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.intervals import medians, pooled
from dpexp.study.records import Rounds

NOT_CHECKED = "not checked"


def _sample_us(run: RecordView, _: str) -> list[float]:
    usual = run.usual
    return [] if usual is None else [1000 * ms / usual.rows for ms in usual.times]


def _peak(run: RecordView, _: str) -> list[float]:
    sizes = run.record.memory.values()
    return [float(max(sizes))] if sizes else []


def _metric(run: RecordView, name: str) -> list[float]:
    return present(run.record.metrics.get(name, []))


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


def _verified(run: RecordView, _: str) -> bool | str:
    """``NOT_CHECKED`` of a program that only measures, and of a run with --no-check."""
    verification = run.record.verification
    return verification.get("passed") is True if verification.get("checked") else NOT_CHECKED


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


TIMED: Mapping[str, tuple[str, str, Callable[[RecordView, str], list[float]]]] = {
    "sample_us": ("time per sample", "us", _sample_us),
    "phase_ms": ("{}", "ms", lambda run, name: run.phase_samples.get(name, [])),
    "peak_bytes": ("peak memory of {}", "B", _peak),
    "time_ms": ("{}", "ms", lambda run, name: _metric(run, f"{name}_ms")),
    "wall_s": ("whole process", "s", lambda run, _: _metric(run, "process_s")),
    "samples": ("{}, in turn", "x", _metric),
}
"""{name: (title, unit, the samples of a run)}; ``{}`` is what stands after the colon."""
FACTS: Mapping[str, tuple[str, str, Callable[[RecordView, str], Any]]] = {
    "parameter_bytes": ("parameters", "B", lambda run, _: parameter_bytes(run.record)),
    "replicated_bytes": ("copied to replicas per step", "B", lambda run, _: replicated_bytes(run.record)),
    "error": ("error of {}s", "error", lambda run, kind: run.errors.get(f"{kind}_error")),
    "split": ("rows per device, by batch", "text", _split),
    "shapes": ("inputs -> outputs of {}", "text", _replica_shapes),
    "verified": ("equal to a single device", "yes", _verified),
    "loss": ("loss", "digits", _loss),
    "metric": ("{}", "digits", lambda run, name: float(_metric(run, name)[-1])),
    "weights": ("weights", "text", lambda run, _: str(run.record.digest.get("weights"))[:12]),
    "steps": ("steps", "text", lambda run, _: len(present(run.record.steps["time_ms"]))),
    "rows": ("batch", "text", lambda run, _: run.usual.rows if run.usual is not None else 0),
}
"""{name: (title, unit, its value)}."""


def metric(name: str) -> Figure:
    """The figure of a name such as ``step_ms`` or ``phase_ms:scatter``. Raises ConfigError."""
    base, _, argument = name.partition(":")
    known = {figure.name: figure for figure in figures(At.METRIC)}
    if base in known:
        return known[base]
    if base not in TIMED and base not in FACTS:
        raise unknown("metric", base, [*known, *TIMED, *FACTS])
    title, unit, of = TIMED[base] if base in TIMED else FACTS[base]
    return Figure(
        name,
        title.format(argument or "the model"),
        unit,
        lambda run: of(run, argument),
        At(0),
        is_sampled=base in TIMED,
        of_runs=typical_of if base in TIMED else partial(agreed, name),
    )


def is_timed(figure: Figure) -> bool:
    """Whether it varies from run to run."""
    return figure.of_runs is typical_of


def agreed(name: str, facts: Sequence[Any]) -> Any:
    """What all runs have, but for those in which it is not known (NaN). Raises ConfigError."""
    first, *others = (math.nan if fact is None else fact for fact in facts)
    if different := [other for other in others if other == other and other != first]:
        raise ConfigError(f"the runs disagree in {name}: {sorted({first, *different}, key=str)}")
    return first


def value(figure: Figure, runs: Rounds) -> Any:
    """A figure of a cell: of a timed one the geometric mean of the runs' medians, else the fact of every run.

    NaN for a fact that is not known. Raises ConfigError if the runs disagree in it, or none has the figure.
    """
    if not is_timed(figure):
        return agreed(figure.name, [figure.number(run) for run in runs.values()])
    numbers = medians(figure, runs)
    if not numbers:
        raise ConfigError(f"no run has a {figure.name}")
    return typical(numbers.values())


def table_cell(figure: Figure, runs: Rounds) -> str:
    """The figure as a table shows it: a timed one with its interquartile range and count."""
    try:
        middle = value(figure, runs)
    except ConfigError:
        return "-"
    if middle != middle:  # NaN: it is not known
        return "-"
    text = units.text(middle, figure.unit)
    samples = pooled(figure, runs) if is_timed(figure) else {"n": 1}
    if samples["n"] == 1:
        return text
    return f"{text} [{units.text(samples['iqr'], figure.unit)}] {samples['n']}"
