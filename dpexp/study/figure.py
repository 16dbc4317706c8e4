"""figure.png of an experiment: one clear picture of its Records.

What to draw is gathered first, as plain rows. Its digest goes into the PNG, so that a check can find whether
the picture shows these Records without comparing pixels of another matplotlib.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.record.record import Row
from dpexp.report import style, units
from dpexp.report.intervals import interval, medians
from dpexp.study.experiment import Bars, Drawing, Lines
from dpexp.study.metrics import is_timed, metric, value
from dpexp.study.records import Rounds, RunsByCell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEY = "dpexp"
"""The key of the digest in the PNG's text."""
FIGURE_DPI = 130
SERIES = ("#0072B2", "#D55E00", "#009E73", "#C2689B", "#332288", "#BC8100", "#3596D6", "#5F6B7A")
BASELINE = SERIES[7]


def save(spec: Drawing, runs: RunsByCell, path: Path) -> None:
    """Draw the figure into a PNG that carries its digest."""
    draw(spec, runs).savefig(path, dpi=FIGURE_DPI, metadata={_KEY: digest(spec, runs), "Software": None})


def shows(path: Path, spec: Drawing, runs: RunsByCell) -> bool:
    """Whether the PNG was drawn from these Records."""
    return path.is_file() and f"{_KEY}\0{digest(spec, runs)}".encode() in path.read_bytes()


def digest(spec: Drawing, runs: RunsByCell) -> str:
    """SHA-256 of the figure's definition and its data."""
    content = [type(spec).__name__, asdict(spec), figure_data(spec, runs)]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def figure_data(spec: Drawing, runs: RunsByCell) -> list[Row]:
    """The figure as data: a row for each bar or line. Cells that were not measured are left out."""
    if isinstance(spec, Lines):
        return [_line(spec, label, points, runs) for label, points in spec.series.items()]
    return [_bar(spec.metric, label, runs[cell]) for cell, label in spec.cells.items() if runs.get(cell)]


def _bar(name: str, label: str, runs: Rounds) -> Row:
    figure = metric(name)
    dots = list(medians(figure, runs).values()) if is_timed(figure) else []
    return {"label": label, "value": value(figure, runs), "dots": dots}


def _line(spec: Lines, label: str, points: Mapping[float, str], runs: RunsByCell) -> Row:
    figure = metric(spec.metric.format(label))
    row: Row = {"label": label, "x": [], "y": [], "low": [], "high": []}
    for x, cell in points.items():
        against = spec.against.get(label, {}).get(x)
        if not runs.get(cell) or (against and not runs.get(against)):
            continue
        if not is_timed(figure):
            numbers = (float(value(figure, runs[cell])),) * 3
        elif (estimate := interval(figure, runs[cell], runs[against] if against else None)) is not None:
            ends = (estimate.low, estimate.high) if estimate.is_known else (estimate.value,) * 2
            numbers = (estimate.value, *ends)
        else:
            continue
        for key, number in zip(("x", "y", "low", "high"), (float(x), *numbers), strict=True):
            row[key].append(number)
    return row


def draw(spec: Drawing, runs: RunsByCell) -> Figure:
    """The picture of these runs."""
    if isinstance(spec, Bars):
        return _draw_bars(spec, figure_data(spec, runs))
    return _draw_lines(spec, figure_data(spec, runs))


def _draw_bars(spec: Bars, data: list[Row]) -> Figure:
    shown = metric(spec.metric)
    figure, axes = style.figure_with_axes(9.0, 1.1 + 0.42 * len(data))
    longest = max(max([row["value"], *row["dots"]]) for row in data)
    for place, row in enumerate(data):
        color = SERIES[0] if place else BASELINE
        axes.barh(place, row["value"], height=0.62, color=color, **style.EDGE)
        axes.plot(row["dots"], [place] * len(row["dots"]), "o", color=style.INK, markersize=3.5, alpha=0.75)
    axes.set_xlim(0, longest * 1.05)
    style.label_rows(
        axes, [f"{row['label']}    {units.text(row['value'], shown.unit):>8}" for row in data], margin=0.7
    )
    axes.xaxis.set_major_formatter(lambda at, _: units.text(at, shown.unit))
    below = f"{shown.title}, geometric mean of the runs' medians; a dot is one run"
    style.title(axes, spec.title, below if any(row["dots"] for row in data) else "")
    return figure


def _draw_lines(spec: Lines, data: list[Row]) -> Figure:
    from matplotlib.ticker import LogLocator  # not for texts

    shown = metric(spec.metric)
    figure, axes = style.figure_with_axes(8.0, 4.6)
    axes.grid(axis="y", color=style.LINE, linewidth=0.6)
    for row, color, marker in zip(
        data, itertools.cycle(SERIES), itertools.cycle(style.MARKERS), strict=False
    ):
        label = style.escape(row["label"])
        axes.plot(row["x"], row["y"], marker=marker, color=color, label=label, markersize=5)
        axes.fill_between(row["x"], row["low"], row["high"], color=color, alpha=0.18, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    xs = sorted({x for row in data for x in row["x"]})
    axes.set_xticks(xs, [units.number(x) for x in xs])
    low, high = sorted(axes.get_ylim())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)))
    axes.minorticks_off()
    unit = "x" if spec.against else shown.unit
    if spec.against:
        axes.axhline(1.0, color=style.INK, linewidth=1.0, linestyle="--")
    axes.yaxis.set_major_formatter(lambda value, _: units.text(value, unit))
    axes.set_xlabel(style.escape(spec.x), fontsize=9, color=style.SOFT)
    axes.set_ylabel(style.escape(spec.y or shown.title), fontsize=9, color=style.SOFT)
    style.title(axes, spec.title)
    axes.legend(frameon=False, fontsize=9, labelcolor=style.INK)
    return figure
