"""Merge: the observations of every rank, as one Record. A rank is a replica.

Each function takes a list by rank; ``names`` are the ranks' devices as the Record names them.
"""

from collections.abc import Sequence

from dpexp.distributed.world import Member
from dpexp.record import Row


def labels(devices: Sequence[str], members: Sequence[Member]) -> list[str]:
    """The names of the ranks' devices, with ``@host`` where several hosts have a device of that name."""
    return [
        f"{device}@{member.host}" if devices.count(device) > 1 else device
        for device, member in zip(devices, members, strict=True)
    ]


def shapes(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """Every rank's rows as those of a replica, by batch, module and rank."""
    order = {row["module"]: index for rows in reversed(by_rank) for index, row in enumerate(rows)}
    merged = [
        {**_renamed(row, names[rank]), "scope": "replica", "replica": rank}
        for rank, rows in enumerate(by_rank)
        for row in rows
    ]
    return sorted(merged, key=lambda row: (row["batch"], order[row["module"]], row["replica"]))


def device_map(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """A tensor that every rank has is one row with replicas; a sharded one is a row for each rank."""
    merged = []
    for rows in zip(*by_rank, strict=True):
        renamed = [_renamed(row, name) for row, name in zip(rows, names, strict=True)]
        if any(row.get("placement") for row in rows):
            merged += [{**row, "rank": rank} for rank, row in enumerate(renamed)]
        else:
            merged.append({**renamed[0], "replicas": [row["device"] for row in renamed[1:]]})
    return merged


def timeline(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """The first rank's rows, and every rank's as its replica's; steps start where the first rank's do."""
    starts = [{row["step"]: row["start_us"] for row in rows if row["phase"] == "step"} for rows in by_rank]
    merged = [_renamed(row, names[0]) for row in by_rank[0]]
    for rank, rows in enumerate(by_rank):
        for row in rows:
            if row["phase"] == "step":
                continue
            shift = starts[0][row["step"]] - starts[rank][row["step"]]
            times = {key: round(row[key] + shift, 3) for key in ("start_us", "end_us")}
            merged.append({**_renamed(row, names[rank]), "replica": rank, **times})
    return merged


def memory(by_rank: Sequence[dict[str, int]], names: Sequence[str]) -> dict[str, int]:
    """Peak bytes by rank: of its process where its device is a CPU, else of the device."""
    merged: dict[str, int] = {}
    for name, peaks in zip(names, by_rank, strict=True):
        of_device = [value for device, value in peaks.items() if device != "cpu"]
        merged[name] = of_device[0] if of_device else peaks["cpu"]
    return merged


def _renamed(row: Row, name: str) -> Row:
    """The row with the name of its rank's device; the host is ``cpu`` on every rank."""
    return row if row["device"] == "cpu" else {**row, "device": name}
