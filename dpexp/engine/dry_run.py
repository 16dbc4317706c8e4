"""Dry run: devices, device map, batch splits and shapes of a run, without computing or writing anything."""

from dataclasses import replace

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions, StrategyOptions
from dpexp.distributed.world import World
from dpexp.engine.prediction import Prediction, predict
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.parallel import chunk_sizes
from dpexp.record.record import Row


def dry_run(config: RunConfig) -> Row:
    """Predict an epoch of the run. Raises ConfigError as a run does, and for a layout that mixes devices.

    As in a Record: name, execution, config, devices, device_map. ``batches``: how many an epoch has, by their
    rows. ``splits``: how they are split over replicas, for each wrapped module, or over ranks. ``shapes`` of
    a full batch and the last one of an epoch; ``memory``: bytes of parameters and buffers by device.
    ``note``: what was not predicted.
    """
    prepared = prepare(config, one_batch=False, planned=True)
    counts = prepared.batch_rows
    first = next(batch for batch in prepared.batches(0) if batch.rows == max(counts))
    batches = [first.sliced(slice(0, rows)) for rows in counts]
    prediction = predict(prepared, batches)
    ranks, notes = _ranks(prepared), [prediction.note]
    selection, used, name = prepared.selection, prediction.devices, prepared.name
    if ranks > 1:
        selection = replace(selection, used=tuple(prepared.request.of_ranks(ranks)))
        used, name = {**used, "used": [*map(devices.label, selection.used)]}, prepared.name_on(ranks)
        notes.append(f"device map and shapes are those of one process; {ranks} ranks share its batches")
    if selection.missing:
        names = ", ".join(map(devices.label, dict.fromkeys(selection.missing)))
        notes.append(f"planned for {names}, which this machine does not have")
    return {
        "name": name,
        "execution": prepared.execution,
        "config": config.to_dict() | {"batch_size": prepared.batch_size},
        "devices": {"requested": list(selection.requested), **used},
        "device_map": prediction.device_map,
        "batches": counts,
        "splits": _splits(prediction, _rank_labels(prepared.strategy.options, ranks), counts),
        "shapes": prediction.shapes,
        "memory": prediction.memory,
        "note": "; ".join(filter(None, notes)),
    }


def _ranks(prepared: Prepared) -> int:
    """How many ranks would run, on all hosts; 0 for a strategy without a launcher."""
    if prepared.strategy.options.launched_ranks is None:
        return 0
    world = World.of()
    return world.size if world is not None else prepared.request.ranks_per_host()


def _rank_labels(options: StrategyOptions, ranks: int) -> list[str]:
    """The ranks that compute each part of a batch, as text."""
    if not isinstance(options, RankOptions) or not ranks:
        return []
    together = options.mesh_of(ranks).ranks_by_dp_rank
    return [f"rank{'s' * (len(each) > 1)} {'+'.join(map(str, each))}" for each in together]


def _splits(prediction: Prediction, ranks: list[str], counts: dict[int, int]) -> list[Row]:
    """How batches are split, over ``ranks`` too; ``counts`` is how many batches an epoch has of each size."""
    places = [*prediction.replicated, ("", ranks)]
    splits = []
    for name, labels in places:
        for rows, batches in counts.items() if labels else ():
            pieces = chunk_sizes(rows, len(labels))  # fewer than there are labels if the rows are few
            split = {"module": name, "rows": rows, "batches": batches, "pieces": pieces}
            splits.append(split | {"devices": labels[: len(pieces)]})
    return splits
