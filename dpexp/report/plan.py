"""The report of a plan: a row for each layout, and what to do."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpexp.record.record import Row
from dpexp.report import units
from dpexp.report.section import Section, Table

COLUMNS = (
    *("layout", "rows", "per device", "parameters", "gradients", "optimizer", "activations", "other"),
    *("sent per step", "at least", "fits"),
)
_OTHER = ("gathered", "inputs", "temporaries")
NOTE = (
    "of a device in a step: bytes allocated at the peak, and PyTorch reserves 10 to 20% more; «at least» is "
    "a bound by FLOPs and bytes sent, not a forecast"
)


def plan_sections(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Section]:
    """A table of the layouts, and the advice with the reasons of those that do not fit."""
    reasons = [f"{row['layout']}: {row['why']}" for row in rows if row["why"]]
    shown = [config["devices"], f"{units.size(config['memory'])} each", config["optimizer"], config["dtype"]]
    table = Table(COLUMNS, tuple(map(_cells, rows)))
    return [
        Section(f"Plan for {', '.join(shown)}", (NOTE,), table=table),
        Section("Advice", (advice(rows), *reasons)),
    ]


def advice(rows: Sequence[Row]) -> str:
    """Which layouts fit, the quickest bound first; and what to do where none does."""
    fitting = [row for row in rows if row["fits"]]
    if fitting:
        first, *others = sorted(fitting, key=lambda row: row["bound_s"] or math.inf)
        also = f"; {', '.join(row['layout'] for row in others)} fit, too" if others else ""
        return f"{first['layout']}{also}"
    near = [row for row in rows if row["why"] and "fits with" in row["why"]]
    if near:
        return "; ".join(f"{row['layout']} {row['why'].partition('; ')[2]}" for row in near)
    return (
        "none of these layouts fits" if any(row["fits"] is False for row in rows) else "none could be planned"
    )


def _cells(row: Row) -> tuple[str, ...]:
    if row["fits"] is None:
        return (row["layout"], *["-"] * (len(COLUMNS) - 2), "not planned")
    kinds, bound = row["bytes"], row["bound_s"]
    sizes = [kinds[name] for name in COLUMNS[3:7]] + [sum(kinds[name] for name in _OTHER)]
    most = f", to {row['most_rows']:,} rows" if row["most_rows"] else ""
    fits = f"yes{most}" if row["fits"] else "no"
    return (
        row["layout"],
        f"{row['rows']:,}",
        units.size(row["peak_bytes"]),
        *map(units.size, sizes),
        units.size(row["sent_bytes"]),
        "-" if bound is None else units.ms(1000 * bound),
        fits,
    )
