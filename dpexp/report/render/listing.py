"""Listing: plain tables for the command line: runs, models and the modules of a model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from dpexp.record import Row
from dpexp.record.summary import RunSummary
from dpexp.report.units import shapes, size

HEADERS = "run, name, strategy, execution, devices, verified, step ms, status, delivered, started"
MOST_LETTERS = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def columns(rows: Iterable[tuple[Any, ...]], indent: int = 2) -> list[str]:
    """One line for each row, every column as wide as its longest cell; all rows have the same length."""
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def runs(summaries: Iterable[RunSummary], delivered: Mapping[str, str]) -> str:
    """One line for each run; a step's time is its median ± half its interquartile range."""
    rows = (_run(summary, delivered.get(summary.run_id, "")) for summary in summaries)
    return "\n".join(columns([tuple(HEADERS.split(", ")), *rows], indent=0))


def _run(summary: RunSummary, delivered: str) -> tuple[str, ...]:
    step = summary.step_ms
    row = (
        summary.run_id,
        summary.name,
        summary.strategy,
        summary.execution,
        device_ranges(summary.devices),
        {True: "yes", False: "no", None: "-"}[summary.verified],
        f"{step['median']:.3g} ± {step['iqr'] / 2:.2g}" if step else "-",
        summary.status + _damage(summary),
        delivered,
        summary.started[:19].replace("T", " "),
    )
    return tuple(map(_printable, row))


def one(summary: RunSummary, delivered: str) -> str:
    """One line on what a run holds, for those who are about to delete it."""
    name = f" '{_printable(summary.name)}'" if summary.name else ""
    held = f"{summary.problem}" if summary.problem else f"{summary.steps} steps"
    status = summary.status + _damage(summary)
    return f"run {summary.run_id}{name}: {status}, {held}; delivered to MLflow: {delivered}"


def _damage(summary: RunSummary) -> str:
    if not summary.damage:
        return ""
    return f", {summary.missing_steps} steps missing" if summary.missing_steps else ", damaged"


def device_ranges(names: Sequence[str]) -> str:
    """``cpu, cuda:0-3``: consecutive indices of one kind are joined."""

    def offset(place: tuple[int, str]) -> tuple[str, int]:
        """Equal for neighbours with consecutive indices."""
        position, name = place
        kind, _, index = name.partition(":")
        return (kind, int(index) - position) if index.isdecimal() else (name, position)

    groups = [[name for _, name in group] for _, group in groupby(enumerate(names), offset)]
    ends = (f"-{group[-1].partition(':')[2]}" if len(group) > 1 else "" for group in groups)
    return ", ".join(group[0] + end for group, end in zip(groups, ends, strict=True))


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would obey, and of bounded length."""
    text = _CONTROL.sub("?", str(text))
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def models(registry: Sequence[Row]) -> str:
    """The registry of ``dpexp.engine.inventory``: a line for each model, followed by its options."""
    lines = []
    for model in registry:
        options = [(f"{option['option']}={option['default']}", option["help"]) for option in model["options"]]
        lines += [f"{model['model']}: {model['help']}", *columns(options), ""]
    lines += [
        "--model NAME:KEY=VALUE,... sets options; --model package.module:factory or file.py:factory is your "
        "own.",
        "`models NAME` shows what a model is made of.",
    ]
    return "\n".join(lines)


def inventory(found: Row) -> str:
    """The result of ``dpexp.engine.inventory.inventory``."""
    title = ("module", "type", "parameters", "bytes", "inputs", "outputs")
    lines = [
        f"{found['model']} with {found['data']}: {found['parameters']:,} parameters, {size(found['bytes'])}",
        "",
        *columns([title, *map(_module, found["modules"])]),
        "",
        f"Shapes are those of one batch of {found['rows']} rows. Name modules with --block, --host or "
        "--place; patterns as layers.* work.",
    ]
    if any(not row["calls"] for row in found["modules"]):
        lines.append("A module that is not called only holds others: name these.")
    return "\n".join(lines)


def _module(row: Row) -> tuple[Any, ...]:
    inputs, outputs = (shapes(row["inputs"]), shapes(row["outputs"])) if row["calls"] else ("not called", "")
    repeats = f" ({row['calls']} calls)" if row["calls"] > 1 else ""
    name = row["module"] or "(model)"
    return (name, row["type"], f"{row['parameters']:,}", size(row["bytes"]), inputs, outputs + repeats)
