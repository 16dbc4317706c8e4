"""A comparison as data: a row for each config, with raw numbers, for CSV."""

import csv
import io
from typing import Any

from dpexp.config.printable import printable_line
from dpexp.record.figures import At, figures
from dpexp.report.compare import Cell, Comparison, Group
from dpexp.report.table import verdict


def to_csv(comparison: Comparison) -> str:
    """A header and a line for each config; the ids of its runs are separated by spaces."""
    text, rows = io.StringIO(), comparison_rows(comparison)
    if rows:
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: printable_line(each) if isinstance(each, str) else each for key, each in row.items()}
            for row in rows
        )
    return text.getvalue()


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The configs of all groups, fastest first in each; the same keys in every row, None where unknown."""
    names = dict.fromkeys(name for group in comparison.groups for name in group.metrics)
    return [
        _facts(number, group, cell) | _figures(group, cell, [*names])
        for number, group in enumerate(comparison.groups, start=1)
        for cell in group.ranked
    ]


def _facts(number: int, group: Group, cell: Cell) -> dict[str, Any]:
    first = cell.first
    return {
        "comparison": number,
        "name": first.name,
        "runs": " ".join(run.run_id for run in cell.runs),
        "started": first.started,
        "strategy": first.strategy,
        "model": first.config.get("model"),
        "data": first.config.get("data"),
        "rows": cell.rows,
        "devices": cell.devices,
        "execution": group.key.execution,
        "host": group.key.machine[0],
        "is_baseline": cell is group.baseline,
    }


def _figures(group: Group, cell: Cell, metrics: list[str]) -> dict[str, Any]:
    """The figures of the registry; the speed-up is that over the baseline, with the ends of its interval."""
    row: dict[str, Any] = {}
    for figure in figures(At.ROWS):
        if figure.name == "speed_up":
            found = cell.speed_up(group.baseline)
            is_known = cell is not group.baseline and found.is_known
            ends = {"low": found.low, "high": found.high, "seen": found.least_seen}
            row["speed_up"] = found.value
            row |= {f"speed_up_{name}": end if is_known else None for name, end in ends.items()}
            row["verdict"] = verdict(found) if is_known else ""
        elif figure.name == "metrics":
            row |= {name: cell.metrics().get(name) for name in metrics}
        else:
            row[figure.name] = cell.number(figure)
            if figure.is_sampled:
                row[f"{figure.name}_iqr"] = cell.pooled(figure)["iqr"]
    return row
