"""Observations: what is known of a run before it starts, and what all ranks observe of its placed model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dpexp import devices
from dpexp.distributed import merge
from dpexp.engine.environment import environment
from dpexp.engine.observe import device_map, observe
from dpexp.engine.prepare import Prepared
from dpexp.record import Row, now
from dpexp.strategies import Placed


def describe(prepared: Prepared) -> Row:
    """The facts of a Record that are known before the run: what will run where."""
    config = prepared.config
    accelerators = [
        {
            "name": torch.cuda.get_device_name(device),
            "memory": torch.cuda.get_device_properties(device).total_memory,
        }
        for device in devices.accelerators()
        if device.type == "cuda"
    ]
    return {
        "name": prepared.name,
        "experiment": config.experiment,
        "strategy": config.strategy,
        "execution": prepared.execution,
        "status": "running",
        "started": now(),
        "config": config.to_dict(),
        "config_digest": config.digest(),
        "environment": environment(
            accelerators, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
        ),
        "data": {
            "name": prepared.data.name,
            "samples": prepared.data.samples,
            "description": prepared.data.description,
            "sha256": prepared.data.digest,
        },
    }


def devices_of(prepared: Prepared, placed: Placed) -> Row:
    """The ``devices`` of a Record: asked for, used, where outputs come; ``ranks`` where there are some."""
    found: Row = {
        "requested": list(prepared.selection.requested),
        "used": [devices.label(device) for device in placed.devices],
        "output": devices.label(placed.output_device),
    }
    group = prepared.group
    if group.members:
        names = rank_names(prepared)
        hosts = [name for name in found["used"] if name == "cpu"]
        found["used"] = hosts + names
        found["output"] = names[0]
        found["ranks"] = [
            {"rank": each.rank, "host": each.host, "device": name}
            for each, name in zip(group.members, names, strict=True)
        ]
    return found


def rank_names(prepared: Prepared) -> list[str]:
    """The device of every rank, by its name in the Record."""
    used = prepared.selection.used or (devices.HOST,)
    return merge.labels(prepared.group.all_gather(devices.label(used[0])), prepared.group.members)


class Observations:
    """What is seen of a placed model, by all ranks together; alone, by this process."""

    def __init__(self, prepared: Prepared, placed: Placed) -> None:
        self._prepared = prepared
        self._placed = placed
        self._group = prepared.group
        self._names = rank_names(prepared) if prepared.group.members else []

    def device_map(self) -> list[Row]:
        """See ``observe.device_map``."""
        rows = device_map(self._placed)
        return merge.device_map(self._group.all_gather(rows), self._names) if self._names else rows

    def shapes(self) -> list[Row]:
        """See ``observe.observe``; a batch's rows are those of the ranks that have some of it."""
        counts: list[int] = []

        def inputs() -> Iterator[tuple[Any, ...]]:
            for batch in self._prepared.local_batches(0):
                counts.append(batch.rows)
                yield batch.inputs

        rows = [row for row in observe(self._placed, inputs()) if counts[row["batch"]]]
        return merge.shapes(self._group.all_gather(rows), self._names) if self._names else rows

    def timeline(self, rows: list[Row]) -> list[Row]:
        """The timer's rows, from the start of each step."""
        return merge.timeline(self._group.all_gather(rows), self._names) if self._names else rows

    def memory(self) -> dict[str, int]:
        """Peak bytes by device."""
        peaks = devices.peak_memory(self._placed.devices)
        return merge.memory(self._group.all_gather(peaks), self._names) if self._names else peaks
