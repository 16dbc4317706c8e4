"""Report: Records as text, figures and findings. Needs neither torch nor mlflow.

``sections`` is the report of one run, ``compare`` of several, with the ``findings`` on each run;
``terminal``, ``markdown``, ``timeline`` and ``figures`` show them. Each function takes a Record, or a view
of it that several of them share, and figures import matplotlib when they are drawn.
"""

import json
from pathlib import Path
from typing import TextIO

from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report.figures import layout_figure, phases_figure
from dpexp.report.markdown import markdown_text
from dpexp.report.sections import sections as sections_of
from dpexp.report.style import png
from dpexp.report.terminal import terminal_text
from dpexp.report.timeline import chrome_trace, timeline_page

__all__ = ["note", "summary", "write_files"]


def summary(
    record: Record | RecordView,
    *,
    width: int | None = None,
    full: bool = False,
    stream: TextIO | None = None,
) -> str:
    """The report of a run as text for a stream (default: stdout), by default as wide as its terminal.

    Without ``full``, its long sections are cut. A terminal gets colours.
    """
    return terminal_text(sections_of(RecordView.of(record), full=full), width=width, stream=stream)


def note(record: Record | RecordView) -> str:
    """The short report in Markdown, for ``mlflow.note.content`` and a notebook."""
    return markdown_text(sections_of(RecordView.of(record)))


def write_files(record: Record | RecordView, folder: Path) -> list[Path]:
    """Write ``timeline.html``, ``trace.json``, ``phases.png`` and ``layout.png``.

    Returns the files written. A file for which the Record has no data (a run that failed early) is left out.
    The folder is created if missing.
    """
    view = RecordView.of(record)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {}
    if view.spans:
        trace = json.dumps(chrome_trace(view), separators=(",", ":"))
        contents = {"timeline.html": timeline_page(view).encode(), "trace.json": trace.encode()}
    for name, figure in {"phases.png": phases_figure(view), "layout.png": layout_figure(view)}.items():
        if figure is not None:
            contents[name] = png(figure)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
