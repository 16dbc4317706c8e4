"""Packed rows: ``shapes`` and ``device_map`` as a journal holds them, what is distinct in them once.

5,000 layers in 8 replicas make 145,000 rows of shapes, most of which differ in batch and module only::

    {"calls": [[row, row], ...],                       rows of a module in a batch, without both keys
     "modules": [[["0", 0], ["1", 0], ["2", 1]], ...], (module, number of its rows in calls), of one batch
     "batches": [[0, 0], [1, 0], [2, 0], [3, 1]]}      (batch, number of its modules)

The batch is null for rows without one. A Record has the rows themselves, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

_KEYS = ("batch", "module")


def pack(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows, each of which has a ``module``, as ``unpack`` reads them."""
    calls: dict[str, int] = {}
    modules: dict[tuple[tuple[str, int], ...], int] = {}
    batches = []
    for batch, of_batch in groupby(rows, key=lambda row: row.get("batch")):
        found = []
        for module, of_module in groupby(of_batch, key=lambda row: row["module"]):
            rest = [{key: value for key, value in row.items() if key not in _KEYS} for row in of_module]
            found.append((module, calls.setdefault(json.dumps(rest), len(calls))))
        batches.append([batch, modules.setdefault(tuple(found), len(modules))])
    return {"calls": [json.loads(rest) for rest in calls], "modules": list(modules), "batches": batches}


def unpack(packed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows; equal ones share their lists."""
    calls, modules, batches = (packed[key] for key in ("calls", "modules", "batches"))
    return [
        {**({} if batch is None else {"batch": batch}), "module": module, **row}
        for batch, of_batch in batches
        for module, of_module in modules[of_batch]
        for row in calls[of_module]
    ]
