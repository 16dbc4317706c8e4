"""Records -> text, figures and findings. Needs neither torch nor mlflow.

Importing this package costs nothing: each function imports what it needs when it is called, so that
``--help`` and the measured process never pay for matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.record import Record, Row

if TYPE_CHECKING:
    from dpexp.report.ranking import Comparison
    from dpexp.report.rules import Finding

__all__ = ["compare", "findings", "html", "inventory", "models", "note", "preview", "render", "summary"]


def summary(record: Record, *, width: int | None = None, color: bool | None = None) -> str:
    """The run in words for a terminal ``width`` columns wide (default: this terminal's).

    ``color`` asks for ANSI colours, by default where stdout is a terminal; NO_COLOR overrules it.
    """
    from dpexp.report import story, terminal

    return terminal.text(story.tell(record), width=width, color=color)


def note(record: Record) -> str:
    """The same as ``summary`` in Markdown, for ``mlflow.note.content``."""
    from dpexp.report import markdown, story

    return markdown.text(story.tell(record))


def html(record: Record) -> str:
    """Summary and timeline as one HTML fragment that needs nothing else: a notebook's rich display."""
    from dpexp.report import page

    return page.fragment(record)


def compare(folders: Sequence[Path]) -> Comparison:
    """The runs of these folders, grouped, ranked where they may be, each difference with its interval."""
    from dpexp.report.ranking import compare

    return compare(folders)


def findings(record: Record) -> list[Finding]:
    """What the Record's own figures say should be changed, most important first."""
    from dpexp.report.rules import find

    return find(record)


def render(record: Record, folder: Path) -> list[Path]:
    """Write ``timeline.png``, ``timeline.html``, ``phases.png``, ``layout.png`` and ``trace.json``.

    Returns the files written; what the Record doesn't carry (a run that failed early) is left out.
    """
    from dpexp.report import pictures

    return pictures.render(record, folder)


def preview(planned: Row) -> str:
    """A dry run in words; ``planned`` is a ``dpexp.preview.Preview`` as a dict."""
    from dpexp.report import dry_run

    return dry_run.text(planned)


def models(registry: Sequence[Row]) -> str:
    """The models that have names, with their options; ``registry`` is of ``dpexp.inventory``."""
    from dpexp.report import modules

    return modules.listing(registry)


def inventory(found: Row) -> str:
    """What a model is made of, in words; ``found`` is a ``dpexp.inventory.Inventory`` as a dict."""
    from dpexp.report import modules

    return modules.text(found)
