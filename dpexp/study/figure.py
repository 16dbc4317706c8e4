"""figure.png of an experiment: one clear picture of its Records.

The data to draw is gathered first, as plain rows. Its digest goes into the PNG, so that a check can find
whether the picture shows these Records without comparing pixels of another matplotlib.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.record.record import Row
from dpexp.report import style, units
from dpexp.study.claims import interval
from dpexp.study.figure_kinds import Bars, Curves, Dots, Lines, Splits
from dpexp.study.figure_kinds import ExperimentFigure as Spec
from dpexp.study.metrics import medians, metric, metric_title, value
from dpexp.study.records import MeasuredRun, RunsByCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEY = "dpexp"
"""The key of the digest in the PNG's text."""
FIGURE_DPI = 130
SERIES = ("#0072B2", "#D55E00", "#009E73", "#C2689B", "#332288", "#BC8100", "#3596D6", "#5F6B7A")
BASELINE, LIMIT = SERIES[7], style.PHASES["replicate"]


def save(spec: Spec, runs: RunsByCell, path: Path) -> None:
    """Draw the figure into a PNG that carries the digest of its data."""
    data = figure_data(spec, runs)
    draw(spec, data).savefig(path, dpi=FIGURE_DPI, metadata={_KEY: data_digest(spec, data), "Software": None})


def shows(path: Path, spec: Spec, runs: RunsByCell) -> bool:
    """Whether the PNG was drawn from these Records."""
    digest = data_digest(spec, figure_data(spec, runs))
    return path.is_file() and f"{_KEY}\0{digest}".encode() in path.read_bytes()


def data_digest(spec: Spec, data: list[Row]) -> str:
    """SHA-256 of the figure's definition and its data."""
    content = json.dumps([type(spec).__name__, asdict(spec), data], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def figure_data(spec: Spec, runs: RunsByCell) -> list[Row]:
    """The figure as data: a row for each bar, dot or line. Cells that were not measured are left out."""
    if isinstance(spec, Lines):
        return [_line(spec, label, points, runs) for label, points in spec.series.items()]
    if isinstance(spec, Dots):
        return [
            {"row": row, "label": label, "value": max(spec.floor, value(spec.metric, runs[cell]))}
            for row, series in spec.rows.items()
            for label, cell in series.items()
            if runs.get(cell)
        ]
    measured = [(label, runs[cell]) for cell, label in spec.cells.items() if runs.get(cell)]
    if isinstance(spec, Bars):
        return [_bar(spec.metric, label, of_cell) for label, of_cell in measured]
    if isinstance(spec, Curves):
        return [_curve(label, of_cell[0], spec.window) for label, of_cell in measured]
    return [
        {"label": f"{label}, {group.rows} rows", "rows": group.split or [group.rows]}
        for label, of_cell in measured
        for group in of_cell[0].view.batches
    ]


def _bar(name: str, label: str, runs: Sequence[MeasuredRun]) -> Row:
    kind, _ = metric(name)
    dots = list(medians(name, runs).values()) if kind.is_timed else []
    return {"label": label, "value": value(name, runs), "dots": dots}


def _line(spec: Lines, label: str, points: Mapping[float, str], runs: RunsByCell) -> Row:
    kind, _ = metric(spec.metric)
    name = spec.metric.format(label)
    row: Row = {"label": label, "x": [], "y": [], "low": [], "high": []}
    for x, cell in points.items():
        against = spec.against.get(label, {}).get(x)
        if not runs.get(cell) or (against and not runs.get(against)):
            continue
        if kind.is_timed:
            found = interval(name, runs[cell], runs[against] if against else None)
            if found is None:
                continue
            ends = (found.low, found.high) if found.is_known else (found.value, found.value)
            figures = (found.value, *ends)
        else:
            figures = (float(value(name, runs[cell])),) * 3
        for key, number in zip(("x", "y", "low", "high"), (float(x), *figures), strict=True):
            row[key].append(number)
    return row


def _curve(label: str, run: MeasuredRun, window: int) -> Row:
    """The mean loss of each ``window`` samples, over the number of trained samples."""
    xs, ys, total, weight, trained = [], [], 0.0, 0, 0
    for loss, rows in zip(run.record.steps["loss"], run.record.steps["samples"], strict=True):
        if loss is None or rows is None:  # a program that trains nothing
            continue
        total, weight, trained = total + loss * rows, weight + rows, trained + rows
        if weight >= window:
            xs.append(trained)
            ys.append(total / weight)
            total, weight = 0.0, 0
    return {"label": label, "x": xs, "y": ys}


def draw(spec: Spec, data: list[Row]) -> Figure:
    """The picture of the gathered data."""
    if isinstance(spec, Bars):
        return _draw_bars(spec, data)
    if isinstance(spec, Splits):
        return _draw_splits(spec, data)
    if isinstance(spec, Dots):
        return _draw_dots(spec, data)
    figure, axes = style.figure_with_axes(8.0, 4.6)
    axes.grid(axis="y", color=style.LINE, linewidth=0.6)
    if isinstance(spec, Lines):
        _draw_lines(spec, data, axes)
    else:
        _draw_curves(data, axes)
    style.title(axes, spec.title)
    _legend(axes)
    return figure


def _draw_bars(spec: Bars, data: list[Row]) -> Figure:
    kind, _ = metric(spec.metric)
    figure, axes = style.figure_with_axes(9.0, 1.1 + 0.42 * len(data))
    longest = max([max([row["value"], *row["dots"]]) for row in data] + list(spec.limits.values()))
    for place, row in enumerate(data):
        color = SERIES[0] if place else BASELINE
        axes.barh(place, row["value"], height=0.62, color=color, **style.EDGE)
        axes.plot(row["dots"], [place] * len(row["dots"]), "o", color=style.INK, markersize=3.5, alpha=0.75)
    axes.set_xlim(0, longest * 1.05)
    _draw_limits(axes, spec.limits)
    style.label_rows(axes, [f"{row['label']}    {kind.show(row['value']):>8}" for row in data], margin=0.7)
    axes.xaxis.set_major_formatter(lambda at, _: kind.show(at))
    has_dots = any(row["dots"] for row in data)
    below = (
        f"{metric_title(spec.metric)}, geometric mean of the runs' medians; a dot is one run"
        if has_dots
        else ""
    )
    style.title(axes, spec.title, below)
    return figure


def _draw_dots(spec: Dots, data: list[Row]) -> Figure:
    rows = list(dict.fromkeys(row["row"] for row in data))
    figure, axes = style.figure_with_axes(9.0, 1.6 + 0.36 * len(rows))
    labels = list(dict.fromkeys(row["label"] for row in data))
    for number, label in enumerate(labels):
        dots = [row for row in data if row["label"] == label]
        shift = 0.14 * (number - (len(labels) - 1) / 2)
        xs, ys = [row["value"] for row in dots], [rows.index(row["row"]) + shift for row in dots]
        marker, color = style.MARKERS[number % len(style.MARKERS)], SERIES[number % len(SERIES)]
        axes.plot(xs, ys, marker, color=color, label=style.escape(label), markersize=6)
    axes.set_xscale("log")
    axes.set_xlim(spec.floor / 2, 10 * max([row["value"] for row in data] + list(spec.limits.values())))
    style.log_axis(axes.xaxis, lambda at: f"{at:.0e}")
    _draw_limits(axes, spec.limits)
    style.label_rows(axes, rows, margin=0.9)
    axes.set_xlabel(metric_title(spec.metric), fontsize=9, color=style.SOFT)
    _legend(axes, loc="center", bbox_to_anchor=(0.66, 0.5))
    style.title(axes, spec.title)
    return figure


def _legend(axes: Axes, **where: Any) -> None:
    axes.legend(frameon=False, fontsize=9, labelcolor=style.INK, **where)


def _draw_limits(axes: Axes, limits: Mapping[str, float]) -> None:
    """A dashed line for each limit, its label beside it at the top; the limits of the axis are set."""
    for label, limit in limits.items():
        axes.axvline(limit, color=LIMIT, linewidth=1.2, linestyle="--")
        is_right = (axes.transScale + axes.transLimits).transform((limit, 0))[0] > 0.6
        text = f"{style.escape(label)} " if is_right else f" {style.escape(label)}"
        side = "right" if is_right else "left"
        above = axes.get_xaxis_transform()
        axes.text(limit, 1, text, fontsize=8, color=LIMIT, va="top", ha=side, transform=above)


def _draw_splits(spec: Splits, data: list[Row]) -> Figure:
    figure, axes = style.figure_with_axes(9.0, 1.0 + 0.4 * len(data))
    for place, row in enumerate(data):
        left = 0
        for device, rows in enumerate(row["rows"]):
            color = SERIES[device % len(SERIES)]
            axes.barh(place, rows, left=left, height=0.7, color=color, edgecolor=style.PAPER, linewidth=1.5)
            style.text_on(axes, left + rows / 2, place, str(rows), color, 9)
            left += rows
    style.label_rows(axes, [row["label"] for row in data])
    axes.set_xlabel("rows of the batch; a colour a device", fontsize=9, color=style.SOFT)
    style.title(axes, spec.title)
    return figure


def _draw_lines(spec: Lines, data: list[Row], axes: Axes) -> None:
    kind, _ = metric(spec.metric)
    for row, color, marker in zip(
        data, itertools.cycle(SERIES), itertools.cycle(style.MARKERS), strict=False
    ):
        label = style.escape(row["label"])
        axes.plot(row["x"], row["y"], marker=marker, color=color, label=label, markersize=5)
        axes.fill_between(row["x"], row["low"], row["high"], color=color, alpha=0.18, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    xs = sorted({x for row in data for x in row["x"]})
    if len(xs) < 3:
        style.log_axis(axes.xaxis, units.number)
    else:
        axes.set_xticks(xs, [units.number(x) for x in xs])
    axes.minorticks_off()
    show: Any = units.ratio if spec.against else kind.show
    if spec.against:
        axes.axhline(1.0, color=style.INK, linewidth=1.0, linestyle="--")
    style.log_axis(axes.yaxis, show)
    axes.set_xlabel(style.escape(spec.x), fontsize=9, color=style.SOFT)
    axes.set_ylabel(style.escape(spec.y or metric_title(spec.metric)), fontsize=9, color=style.SOFT)


def _draw_curves(data: list[Row], axes: Axes) -> None:
    """The first line is wide, so that a line that covers it leaves it visible."""
    for number, row in enumerate(data):
        width, alpha = (1.6, 1.0) if number else (6.0, 0.45)
        color = SERIES[number % len(SERIES)]
        label = style.escape(row["label"])
        axes.plot(row["x"], row["y"], color=color, alpha=alpha, linewidth=width, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples seen", fontsize=9, color=style.SOFT)
    axes.set_ylabel("loss", fontsize=9, color=style.SOFT)
