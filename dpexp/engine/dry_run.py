"""DryRun: what a run would do, for ``--dry-run``: devices, device map, batch split and shapes.

The model is built, laid out and run on fake tensors; no number is computed and nothing is written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from dpexp import devices
from dpexp.config import LaunchOptions, RunConfig
from dpexp.distributed.device_assignment import processes
from dpexp.distributed.rendezvous import host_range
from dpexp.distributed.world import World
from dpexp.engine import loop
from dpexp.engine.observe import device_map
from dpexp.engine.predict import predict
from dpexp.parallel import chunk_sizes
from dpexp.record import Row
from dpexp.strategies import Placed
from dpexp.strategies.wrappers import Wrapper, parts
from dpexp.tensors import map_tensors
from dpexp.timing import Timer


@dataclass(frozen=True)
class DryRun:
    """A run that was not run.

    ``splits`` say how an epoch's batches fall on replicas, by wrapped module, or on ranks; ``shapes`` are
    predicted for a full batch and for the rest of an epoch; ``memory`` is bytes of parameters and buffers by
    device.
    """

    name: str
    execution: str
    config: Row
    devices: Row
    device_map: list[Row]
    splits: list[Row]
    shapes: list[Row]
    memory: dict[str, dict[str, int]]
    note: str


def dry_run(config: RunConfig) -> DryRun:
    """Lay the model out and predict an epoch. Raises ConfigError as a run would, and for mixed devices."""
    prepared = loop.prepare(config, try_one_batch=False)
    used = prepared.selection.used
    predicted = predict(prepared.model, prepared.strategy, used, _one_of_each_size(prepared))
    placed = prepared.strategy.place(copy.deepcopy(prepared.model), used, Timer())
    ranks = _ranks(config)
    return DryRun(
        name=prepared.name,
        execution=prepared.execution,
        config=config.to_dict(),
        devices=loop.devices_of(prepared, placed),
        device_map=device_map(placed),
        splits=_splits(placed, ranks, _sizes(prepared)),
        shapes=predicted.shapes,
        memory=predicted.memory,
        note="; ".join(filter(None, (predicted.note, _of_one_rank(ranks)))),
    )


def _sizes(prepared: loop.Prepared) -> dict[int, int]:
    """How many batches of how many rows an epoch has."""
    full, rest = divmod(prepared.data.samples, prepared.config.batch_size)
    return {rows: count for rows, count in ((prepared.config.batch_size, full), (rest, 1)) if rows and count}


def _one_of_each_size(prepared: loop.Prepared) -> Iterator[tuple[Any, ...]]:
    first = next(prepared.batches(0))
    for rows in _sizes(prepared):
        yield map_tensors(itemgetter(slice(rows)), first.inputs)


def _splits(placed: Placed, ranks: int, sizes: dict[int, int]) -> list[Row]:
    """How an epoch's batches fall on the devices of each wrapped module, and on the ranks; few rows leave the
    last ones without any."""
    named = [(part.name, part.module) for part in parts(placed.module) if isinstance(part.module, Wrapper)]
    takers = [
        (name, [devices.label(device) for device in wrapper.replica_devices]) for name, wrapper in named
    ]
    takers.append(("", [f"rank {rank}" for rank in range(ranks)]))
    splits = []
    for name, places in takers:
        for rows, batches in sizes.items() if places else ():
            cut = chunk_sizes(rows, len(places))
            used = places[: len(cut)]
            splits.append({"module": name, "rows": rows, "batches": batches, "pieces": cut, "devices": used})
    return splits


def _ranks(config: RunConfig) -> int:
    """How many ranks a launched strategy gets; 0 for the others."""
    if not isinstance(config.options, LaunchOptions):
        return 0
    world, (fewest, _) = World.of(), host_range(config.options)
    return world.size if world is not None else fewest * processes(config)


def _of_one_rank(ranks: int) -> str:
    if ranks <= 1:
        return ""
    return f"device map and shapes are those of one process with the whole batch; {ranks} ranks share it"
