"""Files: a run's figures and pages, written into a folder as artifacts of its MLflow page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.record import Record
from dpexp.report.analysis import timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


def render(record: Record, folder: Path) -> list[Path]:
    """Write every figure that the Record has data for into the folder, which is created if missing."""
    from dpexp.report.figures import chrome_trace
    from dpexp.report.figures.layout import layout_figure
    from dpexp.report.figures.phases import phases_figure
    from dpexp.report.figures.timeline import timeline_figure
    from dpexp.report.render import page

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if record.timeline:
        steps = timeline.steps(record)
        trace = json.dumps(chrome_trace.events(record, steps), separators=(",", ":"))
        written = [
            write_picture(folder / "timeline.png", timeline_figure(record, steps)),
            write_text(folder / "timeline.html", page.timeline_page(record, steps)),
            write_text(folder / "trace.json", trace),
        ]
    if record.phases:
        written.append(write_picture(folder / "phases.png", phases_figure(record)))
    if record.device_map:
        written.append(write_picture(folder / "layout.png", layout_figure(record)))
    return written


def write_picture(path: Path, figure: Figure) -> Path:
    """Write a figure as PNG; returns the path."""
    figure.savefig(path, dpi=DPI)
    return path


def write_text(path: Path, content: str) -> Path:
    """Write a text in UTF-8; returns the path."""
    path.write_text(content, encoding="utf-8")
    return path
