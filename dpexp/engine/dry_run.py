"""Dry run: devices, device map, batch splits and shapes of a run, without computing or writing anything."""

import copy
from dataclasses import dataclass
from operator import itemgetter

from dpexp import devices
from dpexp.config import LaunchOptions, RunConfig
from dpexp.distributed.device_assignment import processes
from dpexp.distributed.rendezvous import host_range
from dpexp.distributed.world import World
from dpexp.engine.observations import device_facts
from dpexp.engine.observe import device_map
from dpexp.engine.predict import predict
from dpexp.engine.prepare import prepare
from dpexp.parallel import chunk_sizes
from dpexp.record import Row
from dpexp.strategies import Placed
from dpexp.strategies.wrappers import Wrapper, parts
from dpexp.tensors import map_tensors
from dpexp.timing import Timer


@dataclass(frozen=True)
class DryRun:
    """The plan of a run.

    ``splits`` are how an epoch's batches are split over replicas, for each wrapped module, or over ranks;
    ``shapes`` are predicted for a full batch and the last one of an epoch; ``memory`` is bytes of parameters
    and buffers by device.
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
    """Predict an epoch of the run. Raises ConfigError as a run does, and for a layout that mixes devices."""
    prepared = prepare(config, one_batch=False)
    used = prepared.selection.used
    full, rest = divmod(prepared.data.samples, config.batch_size)
    counts = {rows: count for rows, count in ((config.batch_size, full), (rest, 1)) if rows and count}
    first = next(prepared.batches(0))
    batches = [map_tensors(itemgetter(slice(rows)), first.inputs) for rows in counts]
    prediction = predict(prepared, batches)
    placed = prepared.strategy.place(copy.deepcopy(prepared.model), used, Timer())
    ranks, note = _ranks(config), prediction.note
    if ranks > 1:
        of_ranks = f"device map and shapes are those of one process; {ranks} ranks share its batches"
        note = "; ".join(filter(None, (note, of_ranks)))
    return DryRun(
        name=prepared.name,
        execution=prepared.execution,
        config=config.to_dict(),
        devices=device_facts(prepared, placed),
        device_map=device_map(placed),
        splits=_splits(placed, ranks, counts),
        shapes=prediction.shapes,
        memory=prediction.memory,
        note=note,
    )


def _splits(placed: Placed, ranks: int, counts: dict[int, int]) -> list[Row]:
    """How batches are split; ``counts`` is how many batches an epoch has of each number of rows."""
    places = [
        (part.name, [devices.label(device) for device in part.module.replica_devices])
        for part in parts(placed.module)
        if isinstance(part.module, Wrapper)
    ]
    places.append(("", [f"rank {rank}" for rank in range(ranks)]))
    splits = []
    for name, labels in places:
        for rows, batches in counts.items() if labels else ():
            pieces = chunk_sizes(rows, len(labels))  # fewer than there are labels if the rows are few
            split = {"module": name, "rows": rows, "batches": batches, "pieces": pieces}
            splits.append(split | {"devices": labels[: len(pieces)]})
    return splits


def _ranks(config: RunConfig) -> int:
    """How many ranks a launched strategy gets; 0 for the others."""
    if not isinstance(config.options, LaunchOptions):
        return 0
    world, (fewest_hosts, _) = World.of(), host_range(config.options)
    return world.size if world is not None else fewest_hosts * processes(config)
