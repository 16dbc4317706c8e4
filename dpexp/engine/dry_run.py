"""Dry run: the devices, device map and shapes of a run, without computing or writing anything."""

from dataclasses import replace

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.world import World
from dpexp.engine.observations import merged_shapes, run_facts
from dpexp.engine.prediction import Prediction, predict
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.run_globals import run_globals
from dpexp.measurement.observe import EPOCH_LIMIT
from dpexp.parallel import chunk_sizes
from dpexp.record.record import Record, Row


def dry_run(config: RunConfig) -> Record:
    """The Record of the run before it has begun, of status ``planned``. Nothing is written.

    The shapes are those of an epoch. Of several ranks the device map is that of one process. ``execution`` is
    ``planned`` for devices that this machine does not have. The note of its verification says what was not
    predicted. Raises ConfigError as a run does, and for a layout that mixes devices.
    """
    with run_globals(config):
        return _planned(config, prepare(config, one_batch=False, planned=True))


def _planned(config: RunConfig, prepared: Prepared) -> Record:
    parts = _ranks_by_part(prepared)
    prediction, shapes = _predicted(prepared, len(parts))
    record = Record(**run_facts(config, prepared) | {"status": "planned"}, device_map=prediction.device_map)
    record.devices = {"requested": list(prepared.selection.requested), **prediction.devices}
    selection, notes = prepared.selection, [prediction.note]
    by_rank = {rank: rows for ranks, rows in zip(parts, shapes, strict=True) for rank in ranks}
    if count := len(by_rank):
        selection = replace(selection, used=tuple(prepared.request.of_ranks(count)))
        names = [*map(devices.label, selection.used)]
        record.name = prepared.name_on(count)
        record.devices |= {"used": names, "output": names[0]}
        record.devices["ranks"] = [{"rank": rank, "device": name} for rank, name in enumerate(names)]
        record.shapes = merged_shapes([by_rank[rank] for rank in range(count)], names)
        notes.append(f"the device map is that of one process; {count} ranks share the batches")
    else:
        (record.shapes,) = shapes
    if selection.missing:
        missing = ", ".join(map(devices.label, dict.fromkeys(selection.missing)))
        notes.append(f"planned for {missing}, which this machine does not have")
    record.verification = {"checked": False, "note": "; ".join(filter(None, notes)) or None}
    return record


def _ranks_by_part(prepared: Prepared) -> tuple[tuple[int, ...], ...]:
    """The ranks that would compute each part of a batch, on all hosts; one part without ranks if none run."""
    options, world = prepared.strategy.options, World.of()
    if not isinstance(options, RankOptions) or options.launched_ranks is None:
        return ((),)
    return options.mesh_of(world.size if world else prepared.request.ranks_per_host()).ranks_by_dp_rank


def _predicted(prepared: Prepared, parts: int) -> tuple[Prediction, list[list[Row]]]:
    """The prediction of each size of a part, and the shapes of each part of the batches of an epoch.

    As in a run, not more than ``EPOCH_LIMIT`` batches of a size have rows: the others repeat them.
    """
    counts = prepared.batch_rows
    pieces = {rows: chunk_sizes(rows, parts) for rows in counts}
    sizes = list(dict.fromkeys(size for rows in counts for size in pieces[rows]))
    first = next(batch for batch in prepared.batches(0) if batch.rows == max(counts))
    prediction = predict(prepared, [first.sliced(slice(0, size)) for size in sizes])
    shapes: list[list[Row]] = [[] for _ in range(parts)]
    begin = 0
    for rows, count in counts.items():
        for number in range(begin, begin + min(count, EPOCH_LIMIT)):
            for part, size in enumerate(pieces[rows]):  # fewer than there are parts if the rows are few
                of_size = (row for row in prediction.shapes if row["batch"] == sizes.index(size))
                shapes[part] += [{**row, "batch": number} for row in of_size]
        begin += count
    return prediction, shapes
