"""Copies: what a step moves between the devices of one process: transfers, and replicas with their rows."""

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile

from dpexp.record.batches import Batches, Call, Shape
from dpexp.record.device_map import model_rows
from dpexp.record.record import Record, Row
from dpexp.record.traffic.move import DTYPE_BYTES, ID_BYTES, Move, is_trained


def between_devices(record: Record, group: Batches, trains: bool) -> Iterator[Move]:
    """The copies of a run of one process."""
    for call in group.calls:
        yield from transfers(record, call, trains)
    for call in replicated_calls(group):
        yield from _scattered(record, group, call, trains)
        yield from _replicated(record, call, trains)


def transfers(record: Record, call: Call, trains: bool) -> Iterator[Move]:
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
