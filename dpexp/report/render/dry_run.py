"""A dry run in words: what would run where, and how a batch would be split."""

from __future__ import annotations

from typing import Any

from dpexp.record import Row
from dpexp.report.render.columns import columns
from dpexp.report.units import repeated, shapes, size, span


def text(planned: Row) -> str:
    """The text for a ``dpexp.engine.dry_run.DryRun``, given as a dict."""
    devices = planned["devices"]
    lines = [
        f"Would run {planned['name']} ({planned['execution']}) on {', '.join(devices['used'])}; "
        f"results on {devices['output']}",
        "",
        "Device map",
        *columns(
            [
                ("module", "parameter", "shape", "bytes", "device", "replicas"),
                *map(_placed, planned["device_map"]),
            ]
        ),
        "",
        "Batch split",
        *(columns(map(_split, planned["splits"])) if planned["splits"] else ["  none: no batch is split"]),
        "",
        f"Shapes{': ' * bool(planned['note'])}{planned['note']}",
        *columns(map(_called, planned["shapes"])),
        "",
        "Dry run: nothing was run or written.",
    ]
    return "\n".join(lines)


def _placed(row: Row) -> tuple[Any, ...]:
    replicas = span(row["replicas"]) or "-"
    shape = shapes([row["shape"]])
    return (row["module"], row["parameter"], shape, size(row["bytes"]), row["device"], replicas)


def _split(row: Row) -> tuple[Any, ...]:
    batches = f"{row['batches']} of {row['rows']} rows"
    pieces = repeated(map(str, row["pieces"]))
    return (row["module"] or "(model)", batches, "->", pieces, f"on {span(row['devices'])}")


def _called(row: Row) -> tuple[Any, ...]:
    name = row["module"] or "(model)"
    who = name if row["replica"] is None else f"{name} replica {row['replica']}"
    return (who, shapes(row["inputs"]), "->", shapes(row["outputs"]), f"on {row['device']}")
