"""Markdown: report sections as a note in MLflow and in a notebook, and as a file; tables of READMEs."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from dpexp.config.printable import printable, printable_line
from dpexp.report import units
from dpexp.report.listing import columns
from dpexp.report.section import Section, Table

_WIDTH = 24
"""Letters of a bar of 100%."""


def markdown_text(sections: Sequence[Section]) -> str:
    """The sections as Markdown; names that contain markup are shown as they are.

    Tables are in code blocks: MLflow shows one of Markdown without lines, and its columns run together.
    """
    return "\n\n".join(map(_section, sections)) + "\n"


def write_report(sections: Sequence[Section], folder: Path) -> Path:
    """Write the sections to ``report.md`` in the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.md"
    path.write_text(markdown_text(sections), encoding="utf-8", errors="backslashreplace")
    return path


def escape(text: str) -> str:
    """The text as it is shown, without markup of Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(printable(text), quote=False))


def code(text: str) -> str:
    """The text as a code span."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{printable_line(text)}{fence}"


def table(content: Table) -> str:
    """A Markdown table."""
    head, *rows = ([escape(cell) for cell in row] for row in (content.columns, *content.rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *map(printable_line, lines), "```"])


def _section(section: Section) -> str:
    parts = [f"### {escape(section.title)}"]
    bullet = "- " if section.title == "Findings" or len(section.lines) > 1 else ""
    if section.lines:
        parts.append("\n".join(bullet + escape(line) for line in section.lines))
    if section.bars:
        bars = ("█" * round(min(1.0, bar.share) * _WIDTH) for bar in section.bars)
        rows = (
            (bar.name, drawn, units.percent(bar.share), bar.text)
            for bar, drawn in zip(section.bars, bars, strict=True)
        )
        parts.append(_block(columns(rows)))
    if section.table is not None and section.table.rows:
        parts.append(_block(columns([section.table.columns, *section.table.rows])))
        if section.table.more:
            parts.append(f"… and {section.table.more} more rows")
    if section.commands:
        parts.append("\n".join(f"- {escape(what)}: {code(line)}" for what, line in section.commands))
    return "\n\n".join(parts)
