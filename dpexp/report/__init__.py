"""Report: Records as text, figures and findings. Needs neither torch nor mlflow.

``analysis`` computes, ``findings`` judges, ``compare`` ranks several runs, ``sections`` composes the report
of one, ``render`` and ``figures`` write it. ``scripts``, ``run``, ``study`` and ``tracking`` may import this
package; it imports ``config`` and ``record``. Start with ``sections.py``. Each function imports what it needs
when it is called, so that ``--help`` never loads matplotlib.
"""

from pathlib import Path

from dpexp.record import Record

__all__ = ["html", "note", "summary", "write_files"]


def summary(record: Record, *, width: int | None = None, color: bool | None = None) -> str:
    """The report of a run for a terminal ``width`` columns wide (default: this terminal's).

    ``color`` selects ANSI colours, by default where stdout is a terminal; NO_COLOR overrides it.
    """
    from dpexp.report import sections
    from dpexp.report.render import terminal

    return terminal.text(sections.sections(record), width=width, color=color)


def note(record: Record) -> str:
    """The same report in Markdown, for ``mlflow.note.content``."""
    from dpexp.report import sections
    from dpexp.report.render import markdown

    return markdown.text(sections.sections(record))


def html(record: Record) -> str:
    """The report and the timeline as one self-contained HTML fragment: a notebook's rich display."""
    from dpexp.report.render import page

    return page.fragment(record)


def write_files(record: Record, folder: Path) -> list[Path]:
    """Write ``timeline.png``, ``timeline.html``, ``phases.png``, ``layout.png`` and ``trace.json``.

    Returns the files written. A file for which the Record has no data (a run that failed early) is left out.
    """
    from dpexp.report.figures import files

    return files.render(record, folder)
