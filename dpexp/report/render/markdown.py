"""The story of a run in Markdown: the note on its MLflow page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from dpexp.report import units
from dpexp.report.analysis.phases import Phase
from dpexp.report.sections import Section, Table

WIDTH = 24


def text(sections: Sequence[Section]) -> str:
    """The sections as Markdown; names with markup in them are shown as they are."""
    return "\n\n".join(_section(section) for section in sections) + "\n"


def escape(words: str) -> str:
    """The words so that neither Markdown nor HTML finds anything to do in them."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(words, quote=False))


def code(words: str) -> str:
    """The words as a code span, whatever backticks they hold."""
    fence = "`" * (max((len(run) for run in re.findall("`+", words)), default=0) + 1)
    room = " " if "`" in words else ""
    return f"{fence}{room}{words}{room}{fence}"


def _section(section: Section) -> str:
    parts = [f"### {escape(section.title)}"]
    bullet = "- " if section.title == "Findings" or len(section.lines) > 1 else ""
    if section.lines:
        parts.append("\n".join(bullet + escape(line) for line in section.lines))
    if section.bars:
        parts.append(_bars(section.bars))
    if section.table is not None and section.table.rows:
        parts.append(table(section.table))
        if section.table.more:
            parts.append(f"… and {section.table.more} more rows, in the tables among the artifacts")
    if section.commands:
        parts.append("\n".join(f"- {escape(what)}: {code(line)}" for what, line in section.commands))
    return "\n\n".join(parts)


def table(content: Table) -> str:
    """A Markdown table."""
    rows = [content.columns, tuple("---" for _ in content.columns), *content.rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows)


def _cell(words: str) -> str:
    return words if words == "---" else escape(words).replace("\n", " ")


def _bars(bars: Sequence[Phase]) -> str:
    """Bars in a code block: the one place where Markdown keeps columns."""
    longest = max(len(bar.name) + 2 * bar.depth for bar in bars)
    lines = [
        f"{'  ' * bar.depth + bar.name:<{longest}}  "
        f"{'█' * min(WIDTH, max(1, round(bar.share * WIDTH))):<{WIDTH}}  "
        f"{units.percent(bar.share):>5}  {units.ms(bar.median)} [IQR {units.ms(bar.iqr)}]"
        for bar in bars
    ]
    return "```text\n" + "\n".join(lines) + "\n```"
