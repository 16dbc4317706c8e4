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
        for row in rows:
            texts = {key: printable_line(each) for key, each in row.items() if isinstance(each, str)}
            writer.writerow(row | texts)
    return text.getvalue()


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The configs of all groups, fastest first in each; the same keys in every row, None where unknown."""
    metrics = dict.fromkeys(name for group in comparison.groups for name in group.metrics)
    return [
        {"comparison": number, **_row(group, cell), **{name: cell.metrics().get(name) for name in metrics}}
        for number, group in enumerate(comparison.groups, start=1)
        for cell in group.ranked
    ]


def _row(group: Group, cell: Cell) -> dict[str, Any]:
    first, speed_up = cell.first, cell.speed_up(group.baseline)
    row: dict[str, Any] = {
        "name": first.name,
        "runs": " ".join(run.run_id for run in cell.runs),
        **{key: getattr(first, key) for key in ("started", "strategy", "execution")},
        **{key: first.config.get(key) for key in ("model", "data")},
        "rows": cell.rows,
        "devices": cell.devices,
        "host": group.key.machine[0],
        "is_baseline": cell is group.baseline,
    }
    for figure in figures(At.ROWS):
        if figure.name not in ("speed_up", "metrics"):
            row[figure.name] = cell.number(figure)
            if figure.is_sampled:
                row[f"{figure.name}_iqr"] = cell.pooled(figure)["iqr"]
    ends = {"low": speed_up.low, "high": speed_up.high, "seen": speed_up.least_seen}
    is_known = cell is not group.baseline and speed_up.is_known
    return row | {
        "speed_up": speed_up.value,
        **{f"speed_up_{name}": end if is_known else None for name, end in ends.items()},
        "verdict": verdict(speed_up) if is_known else "",
    }
