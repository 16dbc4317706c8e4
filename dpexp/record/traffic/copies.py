"""Copies: what a step moves between the devices of one process: transfers, and replicas with their rows."""

from collections.abc import Iterator

from dpexp.config.strategy_registry import STRATEGY_OPTIONS
from dpexp.record.batches import Batches, Call
from dpexp.record.device_map import model_rows
from dpexp.record.record import Record
from dpexp.record.traffic.move import Move, is_trained


def between_replicas(record: Record, group: Batches, trains: bool) -> Iterator[Move]:
    """What replicas of one process get and send back."""
    for call in group.replicated:
        yield from _scattered(record, call, trains)
        yield from _replicated(record, call, trains)


def transfers(record: Record, group: Batches, trains: bool) -> Iterator[Move]:
    """What each call of a Transfer moves, of which its row says from where."""
    for row in (row for call in group.calls for row in call.rows if "moved" in row):
        moved: dict[str, int] = row["moved"]
        # the ranks of a run are observed without gradients
        back: dict[str, int] = row.get("moved_back", moved if _host_trains(record, row["module"]) else {})
        yield from (Move("transfer", "transfer", source, row["device"], n) for source, n in moved.items())
        if trains:
            sent = back.items()
            yield from (Move("transfer", "backward", row["device"], source, n, True) for source, n in sent)


def _host_trains(record: Record, transfer: str) -> bool:
    """Whether what a transfer moves has a gradient: its module has trained parameters."""
    module = transfer.removesuffix("transfer")
    return any(is_trained(row) and f"{row['module']}.".startswith(module) for row in record.device_map)


def _scattered(record: Record, call: Call, trains: bool) -> Iterator[Move]:
    """Inputs to the replicas of a call and outputs back, then the gradients of both the other way."""
    first, output = call.devices[0], record.devices["output"] or "cpu"
    for row in call.rows:
        device, found = row["device"], row.get("bytes", {})
        yield Move("scatter", "scatter", first, device, found.get("inputs", 0))
        yield Move("gather", "gather", device, output, found.get("outputs", 0))
        if trains:
            yield Move("gather", "backward", output, device, found.get("output_gradients", 0), True)
            yield Move("scatter", "backward", device, first, found.get("input_gradients", 0), True)


def _replicated(record: Record, call: Call, trains: bool) -> Iterator[Move]:
    """Parameters and buffers to the replicas, at each call; the gradients of parameters back, added up."""
    for row in model_rows(record):
        if not (row["replicas"] and f"{row['module']}.".startswith(f"{call.module}." if call.module else "")):
            continue
        options = STRATEGY_OPTIONS.get(record.strategy)
        for device in row["replicas"] if options is not None and options.copies_to_all else call.devices:
            yield Move("replicate", "replicate", row["device"], device, row["bytes"])
        if trains and is_trained(row):
            for device in call.devices:
                yield Move("replicate", "backward", device, row["device"], row["bytes"], True)
