"""figure.png of an experiment: one clear picture of its Records.

What is drawn is gathered first, as plain data; its digest goes into the PNG, so that a check can tell
whether the picture is that of the Records without comparing pixels of another matplotlib.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.record import Row
from dpexp.report import units
from dpexp.report.analysis.shapes import batches
from dpexp.report.figures import palette, style
from dpexp.study.claims import interval
from dpexp.study.experiment import Bars, Dots, Lines, Measured, Splits
from dpexp.study.experiment import Figure as Spec
from dpexp.study.metrics import metric, samples, title, value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = Mapping[str, Sequence[Measured]]
KEY = b"dpexp"
DPI = 130
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#332288", "#E69F00", "#56B4E9", "#5F6B7A")
MARKERS = "osD^vPX*"


def save(spec: Spec, cells: Cells, path: Path) -> None:
    """Draw the figure into a PNG that carries the digest of its data."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    data = gather(spec, cells)
    figure = draw(spec, data)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI, metadata={KEY.decode(): digest(spec, data), "Software": None})


def is_of(path: Path, spec: Spec, cells: Cells) -> bool:
    """Whether the PNG was drawn from these Records."""
    return path.is_file() and text_chunk(path.read_bytes()) == digest(spec, gather(spec, cells))


def digest(spec: Spec, data: list[Row]) -> str:
    """SHA-256 of what is drawn, and of how."""
    told = json.dumps([type(spec).__name__, asdict(spec), data], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()


def text_chunk(png: bytes) -> str | None:
    """Our text in a PNG (its tEXt chunk of the key ``dpexp``); None where there is none."""
    place = 8
    while place + 8 <= len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + length]
        if kind == b"tEXt" and body.startswith(KEY + b"\0"):
            return body[len(KEY) + 1 :].decode("latin-1")
        place += 12 + length
    return None


# --- what is drawn -------------------------------------------------------------------------------


def gather(spec: Spec, cells: Cells) -> list[Row]:
    """The figure as data: one row a bar or a line. Cells that were not measured are left out."""
    if isinstance(spec, Bars):
        return [
            _bar(spec.metric, label, cells[cell]) for cell, label in spec.cells.items() if cells.get(cell)
        ]
    if isinstance(spec, Dots):
        return [
            {"row": row, "label": label, "value": max(spec.floor, value(spec.metric, cells[cell]))}
            for row, series in spec.rows.items()
            for label, cell in series.items()
            if cells.get(cell)
        ]
    if isinstance(spec, Lines):
        return [_line(spec, label, points, cells) for label, points in spec.series.items()]
    if isinstance(spec, Splits):
        return [
            {"label": f"{label}, {group.rows} rows", "rows": group.split or [group.rows]}
            for cell, label in spec.cells.items()
            if cells.get(cell)
            for group in batches(cells[cell][0].record)
        ]
    return [
        _curve(label, cells[cell][0], spec.window) for cell, label in spec.cells.items() if cells.get(cell)
    ]


def _bar(name: str, label: str, runs: Sequence[Measured]) -> Row:
    kind, _ = metric(name)
    dots = [statistics.median(each) for each in samples(name, runs)] if kind.is_timed else []
    return {"label": label, "value": value(name, runs), "dots": dots}


def _line(spec: Lines, label: str, points: Mapping[float, str], cells: Cells) -> Row:
    kind, _ = metric(spec.metric)
    row: Row = {"label": label, "x": [], "y": [], "low": [], "high": []}
    for x, cell in points.items():
        other = spec.against.get(label, {}).get(x)
        if not cells.get(cell) or (other and not cells.get(other)):
            continue
        if kind.is_timed:
            beside = samples(spec.metric, cells[other]) if other else None
            found = interval(samples(spec.metric, cells[cell]), beside)
            figures = (found.value, found.low, found.high)
        else:
            figures = (float(value(spec.metric, cells[cell])),) * 3
        for key, number in zip(("x", "y", "low", "high"), (float(x), *figures), strict=True):
            row[key].append(number)
    return row


def _curve(label: str, run: Measured, window: int) -> Row:
    """The mean loss of each ``window`` samples, over the samples seen."""
    xs, ys, total, weight, seen = [], [], 0.0, 0, 0
    for loss, rows in zip(run.record.steps["loss"], run.record.steps["samples"], strict=True):
        total, weight, seen = total + loss * rows, weight + rows, seen + rows
        if weight >= window:
            xs.append(seen)
            ys.append(total / weight)
            total, weight = 0.0, 0
    return {"label": label, "x": xs, "y": ys}


# --- how -----------------------------------------------------------------------------------------


def draw(spec: Spec, data: list[Row]) -> Figure:
    """The picture of the gathered data."""
    if isinstance(spec, Bars):
        return _bars(spec, data)
    if isinstance(spec, Splits):
        return _splits(spec, data)
    if isinstance(spec, Dots):
        return _dots(spec, data)
    figure = style.figure(8.0, 4.6)
    axes = figure.add_subplot()
    style.plain(axes)
    axes.grid(axis="y", color=style.LINE, linewidth=0.6)
    if isinstance(spec, Lines):
        _lines(spec, data, axes)
    else:
        _curves(data, axes)
    style.title(axes, spec.title)
    axes.legend(frameon=False, fontsize=9, labelcolor=style.INK)
    return figure


def _bars(spec: Bars, data: list[Row]) -> Figure:
    kind, _ = metric(spec.metric)
    figure = style.figure(9.0, 1.1 + 0.42 * len(data))
    axes = figure.add_subplot()
    style.plain(axes)
    longest = max([max([row["value"], *row["dots"]]) for row in data] + list(spec.limits.values()))
    for place, row in enumerate(data):
        axes.barh(
            place,
            row["value"],
            height=0.62,
            color=SERIES[0 if place else 7],
            edgecolor=style.SOFT,
            linewidth=0.5,
        )
        axes.plot(row["dots"], [place] * len(row["dots"]), "o", color=style.INK, markersize=3.5, alpha=0.75)
    _mark(axes, spec.limits)
    labels = [f"{row['label']}    {kind.show(row['value']):>8}" for row in data]
    axes.set_yticks(range(len(data)), [style.escape(label) for label in labels])
    axes.set_ylim(len(data) - 0.4, -0.7)
    axes.set_xlim(0, longest * 1.05)
    axes.xaxis.set_major_formatter(lambda at, _: kind.show(at))
    dots = "; a dot is one run" if any(row["dots"] for row in data) else ""
    style.title(axes, spec.title, f"{title(spec.metric)}, median of all runs{dots}" if dots else "")
    return figure


def _dots(spec: Dots, data: list[Row]) -> Figure:
    rows = list(dict.fromkeys(row["row"] for row in data))
    figure = style.figure(9.0, 1.6 + 0.36 * len(rows))
    axes = figure.add_subplot()
    style.plain(axes)
    labels = list(dict.fromkeys(row["label"] for row in data))
    for number, label in enumerate(labels):
        mine = [row for row in data if row["label"] == label]
        places = [rows.index(row["row"]) + 0.14 * (number - (len(labels) - 1) / 2) for row in mine]
        axes.plot(
            [row["value"] for row in mine],
            places,
            MARKERS[number % len(MARKERS)],
            color=SERIES[number % len(SERIES)],
            label=style.escape(label),
            markersize=6,
        )
    _mark(axes, spec.limits)
    axes.set_xscale("log")
    axes.set_xlim(spec.floor / 2, 10 * max([row["value"] for row in data] + list(spec.limits.values())))
    axes.set_yticks(range(len(rows)), [style.escape(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.set_xlabel(title(spec.metric), fontsize=9, color=style.SOFT)
    axes.legend(frameon=False, fontsize=9, labelcolor=style.INK, loc="center", bbox_to_anchor=(0.66, 0.5))
    style.title(axes, spec.title)
    return figure


def _mark(axes: Axes, limits: Mapping[str, float]) -> None:
    """A dashed line for each limit, its name beside it at the top."""
    for told, limit in limits.items():
        axes.axvline(limit, color=palette.PHASES["replicate"], linewidth=1.2, linestyle="--")
        axes.text(limit, -0.62, f" {told}", fontsize=8, color=palette.PHASES["replicate"], va="bottom")


def _splits(spec: Splits, data: list[Row]) -> Figure:
    figure = style.figure(9.0, 1.0 + 0.4 * len(data))
    axes = figure.add_subplot()
    style.plain(axes)
    for place, row in enumerate(data):
        left = 0
        for device, rows in enumerate(row["rows"]):
            color = SERIES[device % len(SERIES)]
            axes.barh(place, rows, left=left, height=0.7, color=color, edgecolor=style.PAPER, linewidth=1.5)
            axes.text(
                left + rows / 2,
                place,
                str(rows),
                ha="center",
                va="center",
                fontsize=9,
                color=palette.ink(color),
            )
            left += rows
    axes.set_yticks(range(len(data)), [style.escape(row["label"]) for row in data])
    axes.set_ylim(len(data) - 0.4, -0.6)
    axes.set_xlabel("rows of the batch; a colour a device", fontsize=9, color=style.SOFT)
    style.title(axes, spec.title)
    return figure


def _lines(spec: Lines, data: list[Row], axes: Axes) -> None:
    kind, _ = metric(spec.metric)
    for row, color, marker in zip(data, itertools.cycle(SERIES), itertools.cycle(MARKERS), strict=False):
        axes.plot(
            row["x"], row["y"], marker=marker, color=color, label=style.escape(row["label"]), markersize=5
        )
        axes.fill_between(row["x"], row["low"], row["high"], color=color, alpha=0.18, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({x for row in data for x in row["x"]})
    axes.set_xticks(ticks, [units.number(x) for x in ticks])
    axes.minorticks_off()
    show: Any = units.ratio if spec.against else kind.show
    axes.yaxis.set_major_formatter(lambda at, _: show(at))
    axes.yaxis.set_minor_formatter(lambda at, _: show(at))
    axes.tick_params(axis="y", which="minor", labelsize=7, labelcolor=style.SOFT, length=0)
    if spec.against:
        axes.axhline(1.0, color=style.INK, linewidth=1.0, linestyle="--")
    axes.set_xlabel(style.escape(spec.x), fontsize=9, color=style.SOFT)
    axes.set_ylabel(style.escape(spec.y or title(spec.metric)), fontsize=9, color=style.SOFT)


def _curves(data: list[Row], axes: Axes) -> None:
    """The first line is wide, so that one that lies on it can be seen."""
    for number, row in enumerate(data):
        width, alpha = (1.6, 1.0) if number else (6.0, 0.45)
        color = SERIES[number % len(SERIES)]
        label = style.escape(row["label"])
        axes.plot(row["x"], row["y"], color=color, alpha=alpha, linewidth=width, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples seen", fontsize=9, color=style.SOFT)
    axes.set_ylabel("loss", fontsize=9, color=style.SOFT)
