"""Communication: the bytes that a training step moves between devices, forward and backward, in closed form.

What counts is defined in docs/definitions.md: payload that leaves one device for another in a step of the
largest batch. Between the devices of a process these are copies (copies.py), between ranks collectives
(collectives.py), which count as a ring does them::

    strategy         forward                               backward
    whole, block     scatter, replicate, gather            gather, replicate (sums), scatter of gradients
    ddp              broadcast of buffers                  all-reduce of gradients
    fsdp             all-gather                            all-gather again, reduce-scatter of gradients
    hybrid, place    transfer                              transfer of gradients
    hybrid (ranks)   all-to-all of ids and vectors         all-to-all of gradients, or all-reduce
"""

from collections.abc import Iterator

from dpexp.record.batches import Batches, batches
from dpexp.record.record import Record
from dpexp.record.traffic.collectives import between_ranks
from dpexp.record.traffic.copies import between_devices
from dpexp.record.traffic.move import Move

TRANSFER = "embedding.transfer"
"""The module name under which hybrid records its transfer to the accelerator."""


def moves(record: Record, group: Batches | None = None) -> list[Move]:
    """What a step of these batches moves, by default of the largest; nothing if no model was placed."""
    if record.config.get("layout"):
        return list(_counted(record))
    group = group or max(batches(record), key=lambda group: group.rows, default=Batches([], []))
    trains = not record.config.get("eval")
    if record.devices.get("ranks"):
        found = list(between_ranks(record, group, trains))
    else:
        found = [move for move in between_devices(record, group, trains) if move.source != move.target]
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


def _counted(record: Record) -> Iterator[Move]:
    """The collectives that were counted in a step of a user's layout; between which ranks is not recorded."""
    ring = [rank["device"] for rank in record.devices.get("ranks") or []]
    for row in record.summary.get("collectives") or []:
        if row["rank"] < len(ring):
            target, phase = ring[(row["rank"] + 1) % len(ring)], "backward" if row["backward"] else "forward"
            yield Move(row["what"], phase, ring[row["rank"]], target, row["bytes"], row["backward"])
