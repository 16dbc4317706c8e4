"""Runs for the command line: a table that is no wider than the terminal, and a line on one of them.

A narrow terminal gets, one after the other as far as it needs: names shortened in the middle, ids as
prefixes that every command takes, step times without their spread, and fewer columns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from rich.cells import cell_len, set_cell_size

from dpexp.config.alike import merged
from dpexp.config.printable import printable_line
from dpexp.config.ranges import consecutive, plural, span
from dpexp.record.figures import At, figures
from dpexp.record.record import Row
from dpexp.record.runs import RunSummary
from dpexp.report import units

_GAP = 2
MOST_COLUMNS = 40
_LEAST = {"name": 8, "status": 8}
"""To how many columns of a terminal a text may be shortened."""
SHORTEST_ID = 8
LEFT_OUT = ("devices", "spread", "started", "strategy", "execution", "MLflow", "verified")
"""What a narrow terminal does without, the least important first."""
Columns = dict[str, list[str]]
"""Cells by header, in the order of the table."""


def runs(
    summaries: Sequence[RunSummary],
    delivered: Mapping[str, str],
    *,
    width: int | None = None,
    ids: Iterable[str] = (),
) -> str:
    """One line for each run, at most ``width`` columns long.

    A step's time is its median ± half its interquartile range. ``ids`` are those of all runs, if more exist.
    """
    table = _columns(summaries, delivered)
    if width is not None:
        table = _fitted(table, width, ids)
    if "spread" in table:
        spreads = table.pop("spread")
        table["step"] = [" ± ".join(filter(None, both)) for both in zip(table["step"], spreads, strict=True)]
    return "\n".join(_lines(table))


def _columns(summaries: Sequence[RunSummary], delivered: Mapping[str, str]) -> Columns:
    verified = {True: "yes", False: "no", None: "-"}
    table = {
        "run": [summary.run_id for summary in summaries],
        "name": [summary.name for summary in summaries],
        "strategy": [summary.strategy for summary in summaries],
        "execution": [summary.execution for summary in summaries],
        "devices": [device_ranges(summary.devices) for summary in summaries],
        "verified": [verified[summary.verified] for summary in summaries],
        **_figures(summaries),
        "status": [_status(summary) for summary in summaries],
        "MLflow": [delivered.get(summary.run_id, "") for summary in summaries],
        "started": [summary.started[:16].replace("T", " ") for summary in summaries],
    }
    return {title: list(map(cache(_cell), cells)) for title, cells in table.items()}


def _figures(summaries: Sequence[RunSummary]) -> Columns:
    """The figures of the registry; of the one with samples half its interquartile range beside its median."""
    columns: Columns = {}
    for figure in figures(At.LIST):
        values = [summary.figures.get(figure.name) for summary in summaries]
        numbers = [value["median"] if figure.is_sampled and value else value for value in values]
        columns[figure.title] = [
            "-" if number is None else units.text(number, figure.unit) for number in numbers
        ]
        if figure.is_sampled:
            columns["spread"] = [
                units.text(value["iqr"] / 2, figure.unit) if value else "" for value in values
            ]
    return columns


def _fitted(table: Columns, width: int, ids: Iterable[str]) -> Columns:
    """The table, at most so wide."""
    table = dict(table)
    widths = {title: _width(title, cells) for title, cells in table.items()}
    if _least(widths) > width:
        table["run"] = prefixes(table["run"], ids)
        widths["run"] = _width("run", table["run"])
    for title in LEFT_OUT:
        if _least(widths) > width:
            del table[title], widths[title]
    for title, least in _LEAST.items():
        others = sum(widths.values()) + _GAP * (len(widths) - 1) - widths[title]
        room = max(least, width - others)
        table[title] = [shortened(cell, room) for cell in table[title]]
        widths[title] = _width(title, table[title])
    return table


def _width(title: str, cells: Iterable[str]) -> int:
    """The columns of the terminal that a column of the table takes; a spread stands behind its `` ± ``."""
    if title == "spread":
        return max(map(cell_len, {*cells}), default=0) + len(" ± ") - _GAP
    return max(map(cell_len, {title, *cells}))


def _least(widths: Mapping[str, int]) -> int:
    """How wide the table is with its texts as short as they may be."""
    shortest = (min(width, _LEAST.get(title, width)) for title, width in widths.items())
    return sum(shortest) + _GAP * (len(widths) - 1)


def prefixes(ids: Sequence[str], others: Iterable[str] = ()) -> list[str]:
    """The first letters of each id, as many as distinguish it from all others, and at least eight."""
    ordered = sorted({*ids, *others})
    lengths = dict.fromkeys(ordered, SHORTEST_ID)
    for one, other in pairwise(ordered):
        shared = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        for run_id in (one, other):
            lengths[run_id] = max(lengths[run_id], shared + 1)
    return [run_id[: lengths[run_id]] for run_id in ids]


def shortened(text: str, width: int) -> str:
    """The text with «…» for its middle where it takes more than ``width`` columns of a terminal."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def _lines(table: Columns) -> list[str]:
    """The header and a line for each row; times end where their header ends."""
    columns = [_padded(title, [title, *cells]) for title, cells in table.items()]
    return [(" " * _GAP).join(row).rstrip() for row in zip(*columns, strict=True)]


def _padded(title: str, cells: Sequence[str]) -> Iterable[str]:
    """The cells of a column, each as wide as the column."""
    width = _width(title, cells)

    def padded(cell: str) -> str:
        padding = " " * (width - cell_len(cell))
        return padding + cell if title == "step" else cell + padding

    return map(cache(padded), cells)


def one(summary: RunSummary, delivered: str) -> str:
    """One line on what a run holds, for those who are about to delete it."""
    name = f" '{_cell(summary.name)}'" if summary.name else ""
    held = f"{summary.problem}" if summary.problem else plural(summary.steps, "step")
    return f"run {summary.run_id}{name}: {_status(summary)}, {held}; delivered to MLflow: {delivered}"


def _status(summary: RunSummary) -> str:
    return f"{summary.status}, damaged" if summary.damage else summary.status


def device_ranges(names: Sequence[str]) -> str:
    """``cpu, cuda:0-3``: consecutive indices of one kind are joined."""
    found: list[str] = []
    for (kind, is_numbered), several in groupby(names, _kind):
        if is_numbered:
            indices = (int(name.rpartition(":")[2]) for name in several)
            found += [f"{kind}:{span(run)}" for run in consecutive(indices)]
        else:
            found += several
    return ", ".join(found)


def _kind(device: str) -> tuple[str, bool]:
    """The kind of a device, and whether its name has an index."""
    kind, _, index = device.partition(":")
    return kind, index.isdecimal()


def _cell(text: object) -> str:
    """The text as one line of bounded length."""
    return shortened(printable_line(text), MOST_COLUMNS)


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
        f"{found['model']} with {found['data']}: {found['parameters']:,} parameters, "
        f"{units.size(found['bytes'])}",
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
        (units.shapes_text(row["inputs"]), units.shapes_text(row["outputs"]))
        if row["calls"]
        else ("not called", "")
    )
    repeats = f" ({row['calls']} calls)" if row["calls"] > 1 else ""
    return (row["type"], f"{row['parameters']:,}", units.size(row["bytes"]), inputs, outputs + repeats)
