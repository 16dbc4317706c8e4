"""Communication: the bytes that a training step moves between devices, forward and backward.

What counts is defined in docs/definitions.md: payload that leaves one device for another in a step of the
largest batch. Between the devices of a process these are copies (copies.py), of bytes that the run observed.
What ranks send each other was counted in a step. Both are known of a Record that has these bytes::

    strategy         forward                               backward
    whole, block     scatter, replicate, gather            gather, replicate (sums), scatter of gradients
    ddp              broadcast of buffers                  all-reduce of gradients
    fsdp             all-gather                            all-gather again, reduce-scatter of gradients
    hybrid, place    transfer                              transfer of gradients
    hybrid (ranks)   all-to-all of ids and vectors         all-to-all of gradients, or all-reduce
"""

from collections.abc import Iterable, Iterator

from dpexp.record.batches import Batches
from dpexp.record.record import Record, Row
from dpexp.record.traffic.copies import between_replicas, transfers
from dpexp.record.traffic.move import Move


def is_known(record: Record, batches: Iterable[Batches]) -> bool:
    """Whether the Record says what a step of its batches moves.

    Older ones do not have the bytes; and of the layout of a user what moves is counted between ranks only.
    """
    if not (record.device_map and record.shapes):
        return False
    if record.devices.get("ranks"):
        return "collectives" in record.summary
    if record.config.get("layout"):
        return False
    replicated = [call for group in batches for call in group.replicated]
    has_transfers = any("moved" in row for row in record.shapes) or not record.config.get("host")
    return has_transfers and all("bytes" in row for call in replicated for row in call.rows)


def moves(record: Record, group: Batches, is_largest: bool) -> list[Move]:
    """What a step of these batches moves, which are the largest or not."""
    trains = not record.config.get("eval")
    found = list(transfers(record, group, trains))
    if not record.devices.get("ranks"):
        found += between_replicas(record, group, trains)
    else:
        found += _between_ranks(record, group, is_largest)
    return [move for move in found if move.source != move.target and move.bytes > 0]


def by_phase(moves: Iterable[Move]) -> dict[str, int]:
    """{phase: the bytes that it moves}, of those that move any."""
    found: dict[str, int] = {}
    for move in moves:
        found[move.phase] = found.get(move.phase, 0) + move.bytes
    return found


def _between_ranks(record: Record, group: Batches, is_largest: bool) -> Iterator[Move]:
    """The collectives that were counted: pieces to their rank, of others all to the next one of a ring.

    Older Records have those of the largest batch.
    """
    ring = [rank["device"] for rank in record.devices["ranks"]]
    counted = record.summary["collectives"]
    for row in (row for row in counted if (row["batch"] in group.numbers if "batch" in row else is_largest)):
        target = row.get("to", (row["rank"] + 1) % len(ring))
        if row["rank"] < len(ring) and target < len(ring):
            ends = ring[row["rank"]], ring[target]
            yield Move(row["what"], _phase(row, record), *ends, row["bytes"], row["backward"])


def _phase(row: Row, record: Record) -> str:
    """The phase of a collective; DistributedDataParallel times its all-reduce inside backward by itself."""
    phase: str = row.get("phase", "backward" if row["backward"] else "forward")
    is_reduced_by_ddp = (row["what"], phase) == ("all-reduce", "backward") and "allreduce" in record.phases
    return "allreduce" if is_reduced_by_ddp else phase
