"""What models there are, and what one is made of, in words for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpexp.record import Row
from dpexp.report.render.columns import columns
from dpexp.report.units import shapes, size


def listing(registry: Sequence[Row]) -> str:
    """The registry of ``dpexp.engine.inventory``: a line a model, below it one for each option."""
    lines = []
    for model in registry:
        lines += [f"{model['model']}: {model['help']}"]
        lines += columns(
            (f"{option['option']}={option['default']}", option["help"]) for option in model["options"]
        )
        lines += [""]
    lines += [
        "--model NAME:KEY=VALUE,... sets options; --model package.module:factory or file.py:factory is your "
        "own.",
        "`models NAME` shows what a model is made of.",
    ]
    return "\n".join(lines)


def text(found: Row) -> str:
    """The text for a ``dpexp.engine.inventory.Inventory``, given as a dict."""
    title = ("module", "type", "parameters", "bytes", "inputs", "outputs")
    lines = [
        f"{found['model']} with {found['data']}: {found['parameters']:,} parameters, {size(found['bytes'])}",
        "",
        *columns([title, *map(_module, found["modules"])]),
        "",
        f"Shapes are those of one batch of {found['rows']} rows. Name modules with --block, --host or "
        "--place; "
        "patterns as layers.* work.",
    ]
    if any(not row["calls"] for row in found["modules"]):
        lines.append("A module that is not called only holds others: name these.")
    return "\n".join(lines)


def _module(row: Row) -> tuple[Any, ...]:
    called = (shapes(row["inputs"]), shapes(row["outputs"])) if row["calls"] else ("not called", "")
    again = f" ({row['calls']} calls)" if row["calls"] > 1 else ""
    name = row["module"] or "(model)"
    return (name, row["type"], f"{row['parameters']:,}", size(row["bytes"]), called[0], called[1] + again)
