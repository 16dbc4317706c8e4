"""Observations: facts of a Record about a run before it starts, and about its placed model on all ranks."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dpexp import devices
from dpexp.distributed import merge
from dpexp.engine.environment import environment, torch_environment
from dpexp.engine.observe import device_map, observe
from dpexp.engine.prepare import Prepared
from dpexp.record import Row, now
from dpexp.strategies import Placed

T = TypeVar("T")


def run_facts(prepared: Prepared) -> Row:
    """The keys of a Record that are known before the run starts."""
    config, data = prepared.config, prepared.data
    return {
        "name": prepared.name,
        "experiment": config.experiment,
        "strategy": config.strategy,
        "execution": prepared.execution,
        "status": "running",
        "started": now(),
        "config": config.to_dict(),
        "config_digest": config.digest(),
        "environment": environment() | torch_environment(),
        "data": {
            "name": data.name,
            "samples": data.samples,
            "description": data.description,
            "sha256": data.digest,
        },
    }


def device_facts(prepared: Prepared, placed: Placed) -> Row:
    """The ``devices`` of a Record: requested, used, where outputs are, and ``ranks`` of a process group."""
    used = [devices.label(device) for device in placed.devices]
    facts: Row = {
        "requested": list(prepared.selection.requested),
        "used": used,
        "output": devices.label(placed.output_device),
    }
    members = prepared.group.members
    if members:
        names = rank_devices(prepared)
        facts["used"] = [name for name in used if name == "cpu"] + names
        facts["output"] = names[0]
        facts["ranks"] = [
            {"rank": member.rank, "host": member.host, "device": name}
            for member, name in zip(members, names, strict=True)
        ]
    return facts


def rank_devices(prepared: Prepared) -> list[str]:
    """The device of every rank, by its name in the Record."""
    used = prepared.selection.used or (devices.HOST,)
    return merge.labels(prepared.group.all_gather(devices.label(used[0])), prepared.group.members)


class Observations:
    """What the ranks of a process group, or this one process, observe of a placed model."""

    def __init__(self, prepared: Prepared, placed: Placed) -> None:
        self._prepared = prepared
        self._placed = placed
        self._names = rank_devices(prepared) if prepared.group.members else []

    def _merged(self, merge_ranks: Callable[[list[T], list[str]], T], value: T) -> T:
        """The values of all ranks as one, if there is a process group."""
        return merge_ranks(self._prepared.group.all_gather(value), self._names) if self._names else value

    def device_map(self) -> list[Row]:
        """``device_map`` of a Record: see ``observe.device_map``."""
        return self._merged(merge.device_map, device_map(self._placed))

    def shapes(self) -> list[Row]:
        """``shapes`` of a Record: see ``observe.observe``. Ranks without rows of a batch are left out."""
        counts: list[int] = []

        def inputs() -> Iterator[tuple[Any, ...]]:
            for batch in self._prepared.local_batches(0):
                counts.append(batch.rows)
                yield batch.inputs

        rows = observe(self._placed, inputs())
        return self._merged(merge.shapes, [row for row in rows if counts[row["batch"]]])

    def timeline(self, rows: list[Row]) -> list[Row]:
        """``timeline`` of a Record from the rows of the ranks' timers."""
        return self._merged(merge.timeline, rows)

    def memory(self) -> dict[str, int]:
        """``memory`` of a Record: peak bytes by device."""
        return self._merged(merge.memory, devices.peak_memory(self._placed.devices))
