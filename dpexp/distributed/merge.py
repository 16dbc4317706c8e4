"""Merge: what every rank saw of a run, as the facts of one Record. A rank is a replica.

Each function takes one value a rank, by rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.distributed.process_group import Member
from dpexp.record import Row


def labels(devices: Sequence[str], members: Sequence[Member]) -> list[str]:
    """The ranks' devices by name; with its host behind it where two hosts have a device of the same name."""
    return [
        f"{device}@{members[rank].host}" if devices.count(device) > 1 else device
        for rank, device in enumerate(devices)
    ]


def shapes(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """Every rank's rows as those of a replica, batch by batch and module by module."""
    order = {row["module"]: index for rows in reversed(by_rank) for index, row in enumerate(rows)}
    merged = [
        {**row, "scope": "replica", "replica": rank, "device": _own(row["device"], names[rank])}
        for rank, rows in enumerate(by_rank)
        for row in rows
    ]
    return sorted(merged, key=lambda row: (row["batch"], order[row["module"]], row["replica"]))


def device_map(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """What all ranks hold alike is one row with replicas; what each holds a part of, a row a rank."""
    merged = []
    for rows in zip(*by_rank, strict=True):
        placed = [{**row, "device": _own(row["device"], names[rank])} for rank, row in enumerate(rows)]
        if any(row.get("placement") for row in rows):
            merged += [{**row, "rank": rank} for rank, row in enumerate(placed)]
        else:
            merged.append({**placed[0], "replicas": [row["device"] for row in placed[1:]]})
    return merged


def timeline(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """The first rank's phases, and every rank's as its replica's, each from the start of its own step."""
    starts = [{row["step"]: row["start_us"] for row in rows if row["phase"] == "step"} for rows in by_rank]
    merged = [{**row, "device": _own(row["device"], names[0])} for row in by_rank[0]]
    for rank, rows in enumerate(by_rank):
        for row in rows:
            if row["phase"] == "step":
                continue
            shift = starts[0][row["step"]] - starts[rank][row["step"]]
            merged.append(
                {
                    **row,
                    "replica": rank,
                    "device": _own(row["device"], names[rank]),
                    "start_us": round(row["start_us"] + shift, 3),
                    "end_us": round(row["end_us"] + shift, 3),
                }
            )
    return merged


def memory(by_rank: Sequence[dict[str, int]], names: Sequence[str]) -> dict[str, int]:
    """Peak bytes by rank: of its process where its device is a CPU, of the device elsewhere."""
    merged: dict[str, int] = {}
    for name, peaks in zip(names, by_rank, strict=True):
        own = [value for device, value in peaks.items() if device != "cpu"]
        merged[name] = own[0] if own else peaks["cpu"]
    return merged


def _own(device: str, name: str) -> str:
    """The device in a rank's row by its name in the Record; the host stays the host."""
    return device if device == "cpu" else name
