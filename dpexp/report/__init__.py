"""Report: Records as text, figures and findings. Needs neither torch nor mlflow.

``sections`` is the report of one run, ``compare`` of several, with the ``findings`` on each run;
``terminal``, ``markdown``, ``page`` and ``figures`` show them. Each function takes a Record, or a view of it
that several of them share, and imports what it needs when it is called: ``--help`` never loads matplotlib.
"""

import json
from pathlib import Path
from typing import TextIO

from dpexp.record.record import Record
from dpexp.record.view import RecordView

__all__ = ["html", "note", "summary", "write_files"]


def summary(
    record: Record | RecordView,
    *,
    width: int | None = None,
    color: bool | None = None,
    full: bool = False,
    stream: TextIO | None = None,
) -> str:
    """The report of a run as text for a stream (default: stdout), ``width`` columns wide.

    By default it is as wide as the stream's terminal. Without ``full``, its long sections are cut to ten
    lines. ``color`` selects ANSI colours, by default where the stream is a terminal; NO_COLOR overrides it.
    """
    from dpexp.report import sections, terminal

    found = sections.sections(record, full=full)
    return terminal.terminal_text(found, width=width, color=color, stream=stream)


def note(record: Record | RecordView) -> str:
    """The short report in Markdown, for ``mlflow.note.content``."""
    from dpexp.report import markdown, sections

    return markdown.markdown_text(sections.sections(record), markdown.columns)


def html(record: Record | RecordView) -> str:
    """The report and the timeline as one self-contained HTML fragment: a notebook's rich display."""
    from dpexp.report import page

    return page.fragment(RecordView.of(record))


def write_files(record: Record | RecordView, folder: Path) -> list[Path]:
    """Write ``timeline.html``, ``trace.json``, ``phases.png`` and ``layout.png``.

    Returns the files written. A file for which the Record has no data (a run that failed early) is left out.
    The folder is created if missing.
    """
    from dpexp.report import chrome_trace, page, style, timeline
    from dpexp.report.figures import layout_figure, phases_figure

    figures, texts, view = {}, {}, RecordView.of(record)
    record = view.record
    if record.timeline:
        steps = timeline.steps(view)
        texts["timeline.html"] = page.timeline_page(view, steps)
        texts["trace.json"] = json.dumps(chrome_trace.events(record, steps), separators=(",", ":"))
    if record.phases:
        figures["phases.png"] = phases_figure(view)
    if record.device_map:
        figures["layout.png"] = layout_figure(view)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        style.save_png(figure, folder / name)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    return [folder / name for name in (*figures, *texts)]
