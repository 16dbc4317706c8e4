"""A comparison as files: one page with its tables, and a row for each config with raw numbers as CSV."""

import csv
import io
from pathlib import Path
from typing import Any

from dpexp.config.printable import printable_line
from dpexp.record.figures import At, figures
from dpexp.report import page
from dpexp.report.compare import Cell, Comparison, Group
from dpexp.report.table import comparison_sections, verdict


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``report.html`` and ``report.csv`` into the folder, which is created if missing."""
    sections = "".join(map(page.section, comparison_sections(comparison)))
    written = {
        folder / "report.html": page.document("Comparison of runs", sections),
        folder / "report.csv": to_csv(comparison),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return [*written]


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
    is_known = cell is not group.baseline and speed_up.is_known
    return row | {
        "speed_up": speed_up.value,
        "speed_up_low": speed_up.low if is_known else None,
        "speed_up_high": speed_up.high if is_known else None,
        "verdict": verdict(speed_up) if is_known else "",
    }
