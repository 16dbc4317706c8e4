"""Listing: plain tables for the command line: the models, and the modules of a model."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dpexp.config.alike import merged
from dpexp.config.ranges import plural
from dpexp.record.record import Row
from dpexp.report.units import shapes_text, size


def columns(rows: Iterable[tuple[Any, ...]], indent: int = 2) -> list[str]:
    """One line for each row, every column as wide as its longest cell; all rows have the same length."""
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def models_text(registry: Sequence[Row]) -> str:
    """The registry of ``dpexp.engine.facts.inventory``: a line for each model, followed by its options."""
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


def inventory_text(found: Row) -> str:
    """The result of ``dpexp.engine.facts.inventory.inventory``."""
    title = ("module", "type", "parameters", "bytes", "inputs", "outputs")
    lines = [
        f"{found['model']} with {found['data']}: {found['parameters']:,} parameters, {size(found['bytes'])}",
        "",
        *columns([title, *_modules(found["modules"])]),
        "",
        f"Shapes are those of one batch of {plural(found['rows'], 'row')}. Name modules with --block, "
        "--host or --place; patterns as layers.* work.",
    ]
    if any(not row["calls"] for row in found["modules"]):
        lines.append("A module that is not called only holds others: name these.")
    return "\n".join(lines)


def _modules(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A row for each module; those that are alike share one, as ``layers.0-11.linear1``."""
    names = {row["module"] for row in rows}
    for name, (kind, parameters, size_of, *others) in merged((row["module"], _module(row)) for row in rows):
        each = "" if name in names else " each"
        yield (name or "(model)", kind, parameters + each, size_of + each, *others)


def _module(row: Row) -> tuple[str, ...]:
    inputs, outputs = (
        (shapes_text(row["inputs"]), shapes_text(row["outputs"])) if row["calls"] else ("not called", "")
    )
    repeats = f" ({row['calls']} calls)" if row["calls"] > 1 else ""
    return (row["type"], f"{row['parameters']:,}", size(row["bytes"]), inputs, outputs + repeats)
