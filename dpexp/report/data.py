"""A comparison as data: a row for each config, with raw numbers, for CSV and JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from dpexp.config.printable import printable_line
from dpexp.record.figures import At, figures
from dpexp.report import table
from dpexp.report.compare import Cell, Comparison, Group

_FORMULA = re.compile(r"(^|[,;|])([\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def comparison_json(comparison: Comparison) -> str:
    """One JSON document: ``configs``, and the runs ``left_out`` with the reasons."""
    left_out = [{"run": run, "reason": reason} for run, reason in comparison.left_out]
    configs = [{key: _spelled(value) for key, value in row.items()} for row in comparison_rows(comparison)]
    return json.dumps({"configs": configs, "left_out": left_out}, indent=1, allow_nan=False)


def _spelled(value: Any) -> Any:
    """Numbers that JSON lacks as a Record spells them: ``"nan"``, ``"inf"``."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(comparison: Comparison) -> str:
    """A header and a line for each config; the ids of its runs are separated by spaces."""
    text = io.StringIO()
    rows = ({**row, "runs": " ".join(row["runs"])} for row in comparison_rows(comparison))
    found = [{key: _cell(value) for key, value in row.items()} for row in rows]
    if found:
        writer = csv.DictWriter(text, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """What a spreadsheet shows and does not compute: in a text ' before what begins a formula.

    Also behind the separators of other countries; numbers stay numbers, also those of a text.
    """
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return _FORMULA.sub(r"\1'\2", printable_line(value))


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The configs of all groups, fastest first in each; the same keys in every row, None where unknown."""
    names = dict.fromkeys(name for group in comparison.groups for name in group.metrics)
    return [
        _row(group, cell, number, [*names])
        for number, group in enumerate(comparison.groups, start=1)
        for cell in group.ranked
    ]


def _row(group: Group, cell: Cell, number: int, metrics: Sequence[str]) -> dict[str, Any]:
    config = cell.first.config
    row = {
        "comparison": number,
        "name": cell.first.name,
        "runs": [run.run_id for run in cell.runs],
        "started": cell.first.started,
        "strategy": cell.first.strategy,
        "model": config.get("model"),
        "data": config.get("data"),
        "rows": cell.rows,
        "devices": cell.devices,
        "execution": group.execution,
        "host": group.machine[0],
        "is_baseline": cell is group.baseline,
    }
    for figure in figures(At.ROWS):
        if figure.name == "speed_up":
            row |= _speed_up(group, cell)
            continue
        if figure.name == "metrics":
            row |= {name: cell.metrics().get(name) for name in metrics}
            continue
        row[figure.name] = cell.number(figure)
        if figure.is_sampled:
            row[f"{figure.name}_iqr"] = cell.pooled(figure)["iqr"]
    return row


def _speed_up(group: Group, cell: Cell) -> dict[str, Any]:
    """Over the baseline of the group, with the ends of its interval."""
    found = cell.speed_up(group.baseline)
    is_known = cell is not group.baseline and found.is_known
    return {
        "speed_up": found.value,
        "speed_up_low": found.low if is_known else None,
        "speed_up_high": found.high if is_known else None,
        "speed_up_seen": found.least_seen if is_known else None,
        "verdict": table.comparison_verdict(found) if is_known else "",
    }
