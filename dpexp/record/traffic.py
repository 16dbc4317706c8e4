"""Traffic: the bytes that a training step moves between devices, forward and backward.

What counts is defined in docs/comparing.md: payload that leaves one device for another. Between the devices
of a process these are copies, of bytes that the run observed; what ranks send each other was counted in a
step. Both are known of a Record that has these bytes::

    strategy         forward                               backward
    whole, block     scatter, replicate, gather            gather, replicate (sums), scatter of gradients
    ddp              broadcast of buffers                  all-reduce of gradients
    fsdp             all-gather                            all-gather again, reduce-scatter of gradients
    hybrid, place    transfer                              transfer of gradients
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.record.batches import Batches, Call, largest, model_rows
from dpexp.record.record import Record, Row


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


def is_trained(row: Row) -> bool:
    """Whether a row of the device map is of a parameter that gets a gradient."""
    return row["kind"] == "parameter" and not row.get("frozen")


def moves(record: Record, batches: list[Batches]) -> list[Move] | None:
    """What a step of the largest of these batches moves; None where the Record does not say it."""
    group = largest(batches)
    if group is None or not _is_known(record, batches):
        return None
    found = list(_transfers(record, group))
    if record.devices.get("ranks"):
        found += _between_ranks(record, group)
    else:
        for call in group.replicated:
            found += _scattered(record, call)
            found += _replicated(record, call)
    trains = not record.config.get("eval")
    return [
        move
        for move in found
        if move.source != move.target and move.bytes > 0 and (trains or not move.is_backward)
    ]


def _is_known(record: Record, batches: Iterable[Batches]) -> bool:
    """Older Records do not have the bytes; of a user's layout only what ranks send is counted."""
    if not record.device_map:
        return False
    if record.devices.get("ranks"):
        return "collectives" in record.summary
    if record.config.get("layout") or record.is_watched:
        return False
    replicated = [call for group in batches for call in group.replicated]
    has_transfers = any("moved" in row for row in record.shapes) or not record.config.get("host")
    return has_transfers and all("bytes" in row for call in replicated for row in call.rows)


def _transfers(record: Record, group: Batches) -> Iterator[Move]:
    """What each call of a Transfer moves, of which its row says from where; and its gradients back."""
    for row in (row for call in group.calls for row in call.rows if "moved" in row):
        moved: dict[str, int] = row["moved"]
        # the ranks of a run are observed without gradients
        back: dict[str, int] = row.get("moved_back", moved if _host_trains(record, row["module"]) else {})
        for source, count in moved.items():
            yield Move("transfer", "transfer", source, row["device"], count)
        for source, count in back.items():
            yield Move("transfer", "backward", row["device"], source, count, True)


def _host_trains(record: Record, transfer: str) -> bool:
    """Whether what a transfer moves has a gradient: its module has trained parameters."""
    module = transfer.removesuffix("transfer")
    return any(is_trained(row) and f"{row['module']}.".startswith(module) for row in record.device_map)


def _scattered(record: Record, call: Call) -> Iterator[Move]:
    """Inputs to the replicas of a call and outputs back, then the gradients of both the other way."""
    first, output = call.devices[0], record.devices["output"] or "cpu"
    for row in call.rows:
        device, found = row["device"], row.get("bytes", {})
        yield Move("scatter", "scatter", first, device, found.get("inputs", 0))
        yield Move("gather", "gather", device, output, found.get("outputs", 0))
        yield Move("gather", "backward", output, device, found.get("output_gradients", 0), True)
        yield Move("scatter", "backward", device, first, found.get("input_gradients", 0), True)


def _replicated(record: Record, call: Call) -> Iterator[Move]:
    """Parameters and buffers to the replicas, at each call; the gradients of parameters back, added up."""
    options = STRATEGY_OPTIONS.get(record.strategy)
    copies_to_all = options is not None and options.copies_to_all
    for row in model_rows(record):
        if row["replicas"] and f"{row['module']}.".startswith(f"{call.module}." if call.module else ""):
            for device in row["replicas"] if copies_to_all else call.devices:
                yield Move("replicate", "replicate", row["device"], device, row["bytes"])
            for device in call.devices if is_trained(row) else ():
                yield Move("replicate", "backward", device, row["device"], row["bytes"], True)


def _between_ranks(record: Record, group: Batches) -> Iterator[Move]:
    """The collectives that were counted: pieces to their rank, of others all to the next one of a ring.

    DistributedDataParallel times its all-reduce by itself.
    """
    ring = [rank["device"] for rank in record.devices["ranks"]]
    for row in record.summary["collectives"]:
        if row["batch"] not in group.numbers:
            continue
        phase = row["phase"]
        if (row["what"], phase) == ("all-reduce", "backward") and "allreduce" in record.phases:
            phase = "allreduce"
        target = row.get("to", (row["rank"] + 1) % len(ring))
        if row["rank"] < len(ring) and target < len(ring):
            yield Move(row["what"], phase, ring[row["rank"]], ring[target], row["bytes"], row["backward"])
