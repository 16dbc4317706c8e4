"""Write a run's pictures and pages into a folder: what its MLflow page shows as artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.record import Record
from dpexp.report import timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


def render(record: Record, folder: Path) -> list[Path]:
    """Write every picture that the Record carries into the folder, made where it isn't there."""
    from dpexp.report import chrome_trace, page
    from dpexp.report.layout_figure import layout_figure
    from dpexp.report.phases_figure import phases_figure
    from dpexp.report.timeline_figure import timeline_figure

    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if record.timeline:
        steps = timeline.steps(record)
        written += [
            _picture(folder / "timeline.png", lambda: timeline_figure(record, steps)),
            _text(folder / "timeline.html", page.timeline_page(record, steps)),
            _text(
                folder / "trace.json", json.dumps(chrome_trace.events(record, steps), separators=(",", ":"))
            ),
        ]
    if record.phases:
        written.append(_picture(folder / "phases.png", lambda: phases_figure(record)))
    if record.device_map:
        written.append(_picture(folder / "layout.png", lambda: layout_figure(record)))
    return written


def _picture(path: Path, draw: Callable[[], Figure]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw()
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI)
    return path


def _text(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path
