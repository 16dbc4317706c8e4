"""Communication: the bytes that a training step moves between devices, forward and backward, in closed form.

What counts is defined in docs/definitions.md: payload that leaves one device for another in a step of the
largest batch. A collective counts as a ring does it (the bus bytes of nccl-tests), so that its bytes
compare with those of copies::

    all-reduce       each rank sends 2 (n - 1) / n of the tensor
    all-gather       each rank sends   (n - 1) / n of the full tensor; reduce-scatter likewise
    broadcast        each rank but the last passes the tensor on

    strategy         forward                               backward
    whole, block     scatter, replicate, gather            gather, replicate (sums), scatter of gradients
    ddp              broadcast of buffers                  all-reduce of gradients
    fsdp             all-gather                            all-gather again, reduce-scatter of gradients
    hybrid, place    transfer                              transfer of gradients
    hybrid (ranks)   all-to-all of ids and vectors         all-to-all of gradients, or all-reduce
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from dpexp.record import Record, Row
from dpexp.report.analysis.layout import model_rows
from dpexp.report.analysis.shapes import Batches, Call, Shape, batches

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ID_BYTES = 8
TRANSFER = "embedding.transfer"
"""The module name under which hybrid records its transfer to the accelerator."""


@dataclass(frozen=True)
class Move:
    """Bytes that one device sends another: ``what`` they are sent by, as a part of the phase ``phase``."""

    what: str
    phase: str
    source: str
    target: str
    bytes: int
    is_backward: bool = False

    @property
    def name(self) -> str:
        """``gather``, or ``gather backward``."""
        return f"{self.what} backward" if self.is_backward else self.what


def moves(record: Record, group: Batches | None = None) -> list[Move]:
    """What a step of these batches moves, by default of the largest; nothing if no model was placed."""
    if record.config.get("layout"):
        return list(_counted(record))
    group = group or max(batches(record), key=lambda group: group.rows, default=Batches([], []))
    trains = not record.config.get("eval")
    if record.devices.get("ranks"):
        found = list(_between_ranks(record, group, trains))
    else:
        found = [move for move in _between_devices(record, group, trains) if move.source != move.target]
    return [move for move in found if move.bytes > 0]


def is_known(record: Record) -> bool:
    """Whether ``moves`` is complete: what the layout of a user moves is counted between ranks only."""
    if record.config.get("layout"):
        return "collectives" in record.summary
    return bool(record.device_map and record.shapes)


def totals(record: Record) -> dict[str, int] | None:
    """``{"forward": bytes, "backward": bytes}`` of a step over all devices; None where it is not known."""
    if not is_known(record):
        return None
    found = {"forward": 0, "backward": 0}
    for move in moves(record):
        found["backward" if move.is_backward else "forward"] += move.bytes
    return found


def by_phase(record: Record, group: Batches | None = None) -> dict[str, int]:
    """The bytes that each phase moves, of those that move any."""
    found: dict[str, int] = {}
    for move in moves(record, group):
        found[move.phase] = found.get(move.phase, 0) + move.bytes
    return found


def is_trained(row: Row) -> bool:
    """Whether a row of the device map is of a parameter that gets a gradient."""
    return row["kind"] == "parameter" and not row.get("frozen")


def _counted(record: Record) -> Iterator[Move]:
    """The collectives that were counted in a step of a user's layout; between which ranks is not recorded."""
    ring = [rank["device"] for rank in record.devices.get("ranks") or []]
    for row in record.summary.get("collectives") or []:
        if row["rank"] < len(ring):
            target, phase = ring[(row["rank"] + 1) % len(ring)], "backward" if row["backward"] else "forward"
            yield Move(row["what"], phase, ring[row["rank"]], target, row["bytes"], row["backward"])


# --- one process: replicas and transfers ---


def _between_devices(record: Record, group: Batches, trains: bool) -> Iterator[Move]:
    for call in group.calls:
        yield from _transfers(record, call, trains)
    for call in replicated_calls(group):
        yield from _scattered(record, group, call, trains)
        yield from _replicated(record, call, trains)


def _transfers(record: Record, call: Call, trains: bool) -> Iterator[Move]:
    """What each call of a Transfer moves; its row names the sources, which older Records lack."""
    for row in call.rows:
        if "moved" not in row and not f".{call.module}".endswith(".transfer"):
            continue
        moved: dict[str, int] = (
            row["moved"] if "moved" in row else {"cpu": tensor_bytes(record, row["outputs"])}
        )
        back: dict[str, int] = row.get("moved_back", moved if _host_trains(record, call.module) else {})
        yield from (Move("transfer", "transfer", source, row["device"], n) for source, n in moved.items())
        if trains:
            sent = back.items()
            yield from (Move("transfer", "backward", row["device"], source, n, True) for source, n in sent)


def _host_trains(record: Record, transfer: str) -> bool:
    """Whether what a transfer moves has a gradient: its module has trained parameters."""
    module = transfer.removesuffix("transfer")
    return any(is_trained(row) and f"{row['module']}.".startswith(module) for row in record.device_map)


def _scattered(record: Record, group: Batches, call: Call, trains: bool) -> Iterator[Move]:
    """Inputs to the replicas of a call and outputs back, then the gradients of both the other way."""
    ids, first, output = id_shapes(record, group), call.devices[0], record.devices["output"] or "cpu"
    for row in call.rows:
        device, found = row["device"], row.get("bytes") or _estimated(record, call, row, ids)
        yield Move("scatter", "scatter", first, device, found.get("inputs", 0))
        yield Move("gather", "gather", device, output, found.get("outputs", 0))
        if trains:
            yield Move("gather", "backward", output, device, found.get("output_gradients", 0), True)
            yield Move("scatter", "backward", device, first, found.get("input_gradients", 0), True)


def _estimated(record: Record, call: Call, row: Row, ids: Collection[tuple[int, ...]]) -> dict[str, int]:
    """The bytes of a replica in a Record that has only shapes.

    Its inputs get a gradient if a trained parameter is defined before it.
    """
    inputs, outputs = tensor_bytes(record, row["inputs"], ids), tensor_bytes(record, row["outputs"])
    gradients = tensor_bytes(record, [dims for dims in row["inputs"] if tuple(dims) not in ids])
    return {
        "inputs": inputs,
        "outputs": outputs,
        "output_gradients": outputs,
        "input_gradients": gradients if _follows_trained(record, call.module) else 0,
    }


def _follows_trained(record: Record, module: str) -> bool:
    before = takewhile(lambda row: not f"{row['module']}.".startswith(f"{module}."), record.device_map)
    return bool(module) and any(map(is_trained, before))


def _replicated(record: Record, call: Call, trains: bool) -> Iterator[Move]:
    """Parameters and buffers to the replicas, at each call; the gradients of parameters back, added up."""
    for row in model_rows(record):
        if not (row["replicas"] and f"{row['module']}.".startswith(f"{call.module}." if call.module else "")):
            continue
        # `functional` copies to devices that have no rows, too
        copied = row["replicas"] if record.strategy == "functional" else call.devices
        for device in copied:
            yield Move("replicate", "replicate", row["device"], device, row["bytes"])
        if trains and is_trained(row):
            for device in call.devices:
                yield Move("replicate", "backward", device, row["device"], row["bytes"], True)


def replicated_calls(group: Batches) -> list[Call]:
    """The calls of the outermost modules that ran as replicas."""
    calls = [call for call in group.calls if call.scope == "replica"]
    if any(call.module == "" for call in calls):
        return [call for call in calls if call.module == ""]
    return [call for call in calls if not any(call.module.startswith(f"{other.module}.") for other in calls)]


# --- ranks: collectives ---


def _between_ranks(record: Record, group: Batches, trains: bool) -> Iterator[Move]:
    ring = [rank["device"] for rank in record.devices["ranks"]]
    kept_on_hosts = record.strategy == "hybrid"
    tables = [row for row in model_rows(record) if kept_on_hosts and row["device"] == "cpu"]
    others = [row for row in model_rows(record) if not (kept_on_hosts and row["device"] == "cpu")]
    for call in group.calls:
        yield from (move for move in _transfers(record, call, trains) if move.source != move.target)
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


# --- bytes of shapes, for Records that have no others ---


def tensor_bytes(record: Record, shapes: Iterable[Shape], ids: Collection[tuple[int, ...]] = ()) -> int:
    """Bytes of tensors of these shapes: 8 a number for the shapes in ``ids``, else as in the run's dtype."""
    size = DTYPE_BYTES.get(record.config.get("dtype", "float32"), 4)
    return sum(math.prod(dims) * (ID_BYTES if tuple(dims) in ids else size) for dims in shapes)


def id_shapes(record: Record, group: Batches) -> set[tuple[int, ...]]:
    """The input shapes of embeddings, whose outputs have one dimension more: the width of the table."""
    widths = {row["module"]: row["shape"][1] for row in model_rows(record) if len(row["shape"]) == 2}
    return {
        tuple(inputs[0])
        for call in group.calls
        for inputs, outputs in zip(call.inputs, call.outputs, strict=True)
        if inputs and outputs and outputs[0] == [*inputs[0], widths.get(call.module)]
    }
