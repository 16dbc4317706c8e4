"""Records -> text, figures and findings. Needs neither torch nor mlflow.

Importing this package costs nothing: each function imports what it needs when it is called, so that
``--help`` and the measured process never pay for matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpexp.record import Record, Row

__all__ = ["html", "inventory", "models", "note", "preview", "summary", "write_files"]


def summary(record: Record, *, width: int | None = None, color: bool | None = None) -> str:
    """The run in words for a terminal ``width`` columns wide (default: this terminal's).

    ``color`` asks for ANSI colours, by default where stdout is a terminal; NO_COLOR overrules it.
    """
    from dpexp.report import sections
    from dpexp.report.render import terminal

    return terminal.text(sections.sections(record), width=width, color=color)


def note(record: Record) -> str:
    """The same as ``summary`` in Markdown, for ``mlflow.note.content``."""
    from dpexp.report import sections
    from dpexp.report.render import markdown

    return markdown.text(sections.sections(record))


def html(record: Record) -> str:
    """Summary and timeline as one HTML fragment that needs nothing else: a notebook's rich display."""
    from dpexp.report.render import page

    return page.fragment(record)


def write_files(record: Record, folder: Path) -> list[Path]:
    """Write ``timeline.png``, ``timeline.html``, ``phases.png``, ``layout.png`` and ``trace.json``.

    Returns the files written; what the Record doesn't carry (a run that failed early) is left out.
    """
    from dpexp.report.figures import files

    return files.render(record, folder)


def preview(planned: Row) -> str:
    """A dry run in words; ``planned`` is a ``dpexp.engine.dry_run.DryRun`` as a dict."""
    from dpexp.report.render import dry_run

    return dry_run.text(planned)


def models(registry: Sequence[Row]) -> str:
    """The models that have names, with their options; ``registry`` is of ``dpexp.engine.inventory``."""
    from dpexp.report.render import models

    return models.listing(registry)


def inventory(found: Row) -> str:
    """What a model is made of, in words; ``found`` is a ``dpexp.engine.inventory.Inventory`` as a dict."""
    from dpexp.report.render import models

    return models.text(found)
