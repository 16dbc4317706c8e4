"""Tables: rows of a Record as artifacts that MLflow shows as tables and compares across runs.

``shapes.json`` has the shapes, ``device_map.json`` the device map.
"""

import json
from typing import Any

from dpexp.record.record import Record, Row

MAX_ROWS = 10_000
"""Rows of a table at most, because MLflow's pages load it whole."""
_FIRST = ("module", "inputs", "outputs", "parameter", "device", "replica", "batch")
"""The first columns of tables."""


def record_tables(record: Record) -> dict[str, str]:
    """The tables' artifacts by file name; only those with rows, and of many rows the first."""
    return {name: table(rows[:MAX_ROWS]) for name, rows in rows_by_table(record).items()}


def rows_by_table(record: Record) -> dict[str, list[Row]]:
    """The rows of each table by its file name; only tables that have some."""
    found = {"shapes.json": record.shapes, "device_map.json": record.device_map}
    return {name: rows for name, rows in found.items() if rows}


def what_is_cut(record: Record) -> str:
    """Which tables are not complete."""
    cut = {name: len(rows) for name, rows in rows_by_table(record).items() if len(rows) > MAX_ROWS}
    return "; ".join(
        f"{name}: the first {MAX_ROWS} of {n} rows, all in record.json" for name, n in cut.items()
    )


def table(rows: list[Row]) -> str:
    """Rows as the JSON of ``log_table``, which MLflow shows as a table and compares across runs.

    What readers look for comes first.
    """
    found = dict.fromkeys(key for row in rows for key in row)
    columns = [*(key for key in _FIRST if key in found), *(key for key in found if key not in _FIRST)]
    data = [[_cell(row.get(key)) for key in columns] for row in rows]
    return json.dumps({"columns": columns, "data": data})


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
