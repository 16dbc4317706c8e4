"""Markdown: report sections as the note on a run's MLflow page, and tables for an experiment's README."""

import html
import re
from collections.abc import Callable, Sequence

from dpexp.config.printable import printable, printable_line
from dpexp.record.phases import Phase
from dpexp.report import units
from dpexp.report.section import Section, Table
from dpexp.report.units import phase_text

_WIDTH = 24
"""Letters of a bar of 100%."""
_BLOCK = re.compile(r"(?!\A-\Z)^([ \t]*(?:\d{1,9}(?=[.)]))?)([-+=.)])(?=[-+= \t]|$)", re.MULTILINE)
"""Where a line would become an item of a list, a rule or a heading; not the dash of an unknown cell."""
_ADDRESS = re.compile(r"(?<![^\W_])(https?(?=:)|ftp(?=:)|www(?=\.))([:.])", re.IGNORECASE)
"""Where a text would become a link by itself."""


def markdown_text(sections: Sequence[Section], write: Callable[[Table], str] | None = None) -> str:
    """The sections as Markdown, tables by ``write``; names that contain markup are shown as they are."""
    return "\n\n".join(_section(section, write or table) for section in sections) + "\n"


def escape(text: str) -> str:
    """The text as it is shown, without markup of Markdown or HTML and without links."""
    plain = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(printable(text), quote=False))
    without_links = _ADDRESS.sub(lambda found: f"{found[1]}&#{ord(found[2])};", plain)
    return _BLOCK.sub(r"\1\\\2", without_links)


def code(text: str) -> str:
    """The text as a code span, whatever backticks it contains."""
    text = printable_line(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _section(section: Section, write: Callable[[Table], str]) -> str:
    parts = [f"### {escape(section.title)}"]
    bullet = "- " if section.title == "Findings" or len(section.lines) > 1 else ""
    if section.lines:
        parts.append("\n".join(bullet + escape(line) for line in section.lines))
    if section.bars:
        parts.append(_bars(section.bars))
    if section.table is not None and section.table.rows:
        parts.append(write(section.table))
        if section.table.more:
            parts.append(f"… and {section.table.more} more rows, in the tables among the artifacts")
    if section.commands:
        parts.append("\n".join(f"- {escape(what)}: {code(line)}" for what, line in section.commands))
    return "\n\n".join(parts)


def table(content: Table) -> str:
    """A Markdown table."""
    lines = ([escape(printable_line(cell)) for cell in row] for row in (content.columns, *content.rows))
    head, *rows = lines
    rule = ["---"] * len(content.columns)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def columns(content: Table) -> str:
    """A table in a code block: MLflow shows one of Markdown without lines, and its columns run together."""
    rows = [[printable_line(cell) for cell in row] for row in (content.columns, *content.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("─" * width for width in widths))
    fence = "`" * max(3, *(1 + len(run) for line in lines for run in re.findall("`+", line)), 3)
    return f"{fence}text\n" + "\n".join(lines) + f"\n{fence}"


def _bars(bars: Sequence[Phase]) -> str:
    """Bars in a code block: only there does Markdown keep columns."""
    names = ["  " * bar.depth + printable_line(bar.name) for bar in bars]
    longest = max(map(len, names))
    lines = [
        f"{name:<{longest}}  "
        f"{'█' * min(_WIDTH, max(1, round(bar.share * _WIDTH))):<{_WIDTH}}  "
        f"{units.percent(bar.share):>5}  {phase_text(bar)}"
        for name, bar in zip(names, bars, strict=True)
    ]
    return "```text\n" + "\n".join(lines) + "\n```"
