"""What the ranks of a run send each other in a step, in closed form from its device map and shapes.

A collective counts as a ring does it (the bus bytes of nccl-tests), so that its bytes compare with those of
copies::

    all-reduce       each rank sends 2 (n - 1) / n of the tensor
    all-gather       each rank sends   (n - 1) / n of the full tensor; reduce-scatter likewise
    broadcast        each rank but the last passes the tensor on
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from dpexp.record.batches import Batches, batches, model_rows
from dpexp.record.record import Record, Row
from dpexp.record.traffic import Move, is_trained

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ID_BYTES = 8


def between_ranks(record: Record) -> Iterator[Move]:
    """The collectives of ranks, for the largest batch."""
    group, trains = max(batches(record), key=lambda group: group.rows), not record.config.get("eval")
    ring = [rank["device"] for rank in record.devices["ranks"]]
    kept_on_hosts = record.strategy == "hybrid"
    tables = [row for row in model_rows(record) if kept_on_hosts and row["device"] == "cpu"]
    others = [row for row in model_rows(record) if not (kept_on_hosts and row["device"] == "cpu")]
    yield from _sharded_lookups(ring, group, [row for row in tables if row.get("local_shape")], trains)
    if trains:
        replicated = [row for row in tables if row["replicas"] and is_trained(row)]
        yield from _reduced_tables(ring, group, replicated)
    yield from _data_parallel(record, ring, [row for row in others if row["replicas"]], trains)
    yield from _fully_sharded(ring, group, _sharded(others), trains)


def _sharded(rows: Iterable[Row]) -> list[Row]:
    """The rows of sharded parameters, one for each: those of the first rank."""
    return [row for row in rows if row.get("placement") and row.get("rank") == 0]


def _data_parallel(record: Record, ring: Sequence[str], rows: Sequence[Row], trains: bool) -> Iterator[Move]:
    """DistributedDataParallel: buffers as the first rank has them, gradients as their mean."""
    trained = [row for row in rows if is_trained(row)]
    if not trained:  # there is no DistributedDataParallel
        return
    if trains:
        buffers = sum(row["bytes"] for row in rows if row["kind"] == "buffer")
        for source, target in pairwise(ring):
            yield Move("broadcast", "forward", source, target, buffers)
        used = 4 * len(trained) if record.config.get("find_unused") else 0  # which of them have gradients
        yield from _all_reduce("allreduce", ring, sum(row["bytes"] for row in trained) + used, True)


def _fully_sharded(ring: Sequence[str], group: Batches, rows: Sequence[Row], trains: bool) -> Iterator[Move]:
    """FSDP: the parameters of a unit before each of its calls, and again backward; then their gradients."""
    gathered = regathered = scattered = 0
    has_gradient = False
    for row in rows:
        shard = _padded_shard(row, len(ring))
        calls = _calls_of(row.get("unit", ""), group)
        has_gradient |= is_trained(row) or _unit_trains(row, rows)
        gathered += calls * shard
        regathered += calls * shard if has_gradient else 0
        scattered += shard if is_trained(row) else 0
    yield from _ring("all-gather", "all-gather", ring, (len(ring) - 1) * gathered, False)
    if trains:
        yield from _ring("all-gather", "backward all-gather", ring, (len(ring) - 1) * regathered, True)
        yield from _ring("reduce-scatter", "reduce-scatter", ring, (len(ring) - 1) * scattered, True)


def _padded_shard(row: Row, ranks: int) -> int:
    """The bytes that each rank sends of a parameter: the shards of all ranks are as long as the longest."""
    first, *rest = row["shape"] or [1]
    return int(-(-first // ranks) * math.prod(rest) * DTYPE_BYTES.get(row["dtype"], 4))


def _calls_of(unit: str, group: Batches) -> int:
    """How often a unit of FSDP is called in a forward."""
    module = unit.partition(", ")[0]
    call = next((call for call in group.calls if call.module == module), None)
    return max(1, sum(row["replica"] == call.rows[0]["replica"] for row in call.rows)) if call else 1


def _unit_trains(row: Row, rows: Sequence[Row]) -> bool:
    return any(is_trained(other) for other in rows if other.get("unit", "") == row.get("unit", ""))


def _sharded_lookups(
    ring: Sequence[str], group: Batches, tables: Sequence[Row], trains: bool
) -> Iterator[Move]:
    """Ids to the ranks that have their rows, vectors back, and gradients the way of the ids."""
    parts = {(row["module"], row["rank"]): row for row in tables if row["rank"] < len(ring)}
    for row in (row for call in group.calls for row in call.rows if "asked" in row):
        asking = row["replica"] or 0
        for rank, count in enumerate(row["asked"]):
            part = parts.get((row["module"], rank))
            if rank == asking or part is None:
                continue
            vectors = count * part["local_shape"][-1] * DTYPE_BYTES.get(part["dtype"], 4)
            ids = ID_BYTES * (1 + count)  # how many there are, and the ids
            yield Move("all-to-all", "all_to_all_ids", ring[asking], ring[rank], ids)
            yield Move("all-to-all", "all_to_all_vectors", ring[rank], ring[asking], vectors)
            if trains and is_trained(part):
                yield Move("all-to-all", "all_to_all_gradients", ring[asking], ring[rank], vectors, True)


def _reduced_tables(ring: Sequence[str], group: Batches, tables: Sequence[Row]) -> Iterator[Move]:
    """Replicated tables: a dense gradient is all-reduced, of a sparse one each rank's rows are gathered."""
    dense = 0
    for table in tables:
        rows = {
            row["replica"] or 0: row["looked_up"]
            for call in group.calls
            for row in call.rows
            if call.module == table["module"] and "looked_up" in row
        }
        if not rows:
            dense += table["bytes"]
            continue
        size = ID_BYTES + table["shape"][-1] * DTYPE_BYTES.get(table["dtype"], 4)
        for rank, source in enumerate(ring):
            for target in (*ring[:rank], *ring[rank + 1 :]):
                yield Move("all-gather", "allreduce_tables", source, target, rows.get(rank, 0) * size, True)
    yield from _all_reduce("allreduce_tables", ring, dense, True)


def _all_reduce(phase: str, ring: Sequence[str], size: int, is_backward: bool) -> Iterator[Move]:
    return _ring("all-reduce", phase, ring, 2 * (len(ring) - 1) * size // len(ring), is_backward)


def _ring(what: str, phase: str, ring: Sequence[str], sent: int, is_backward: bool) -> Iterator[Move]:
    """Every rank sends so many bytes to the next."""
    for source, target in zip(ring, [*ring[1:], *ring[:1]], strict=True):
        yield Move(what, phase, source, target, sent, is_backward)
