"""The device map, read as a layout: which modules lie on which device, and what moves between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpexp.record import Record, Row
from dpexp.report import units
from dpexp.report.analysis.shapes import Batches, batches

TRANSFER = "embedding.transfer"
"""The module name under which hybrid records its transfer to the accelerator."""


Ids = frozenset[tuple[int, ...]]
"""Shapes of tensors that hold ids."""


@dataclass
class Place:
    """One device: bytes of parameters and buffers by module, its own and its further copies'."""

    device: str
    own: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(self.own.values()) + sum(self.copies.values())


@dataclass(frozen=True)
class Move:
    """Bytes that one step of the largest batch moves from device to device."""

    what: str
    source: str
    target: str
    bytes: int


def places(record: Record) -> list[Place]:
    """Every device that holds or computes something: the host first, then by index."""
    found: dict[str, Place] = {}
    for device in [*record.devices.get("used", []), record.devices.get("output") or "cpu"]:
        found.setdefault(device, Place(device))
    for row in record.device_map:
        own = found.setdefault(row["device"], Place(row["device"])).own
        own[row["module"]] = own.get(row["module"], 0) + row["bytes"]
        for device in row["replicas"]:
            copies = found.setdefault(device, Place(device)).copies
            copies[row["module"]] = copies.get(row["module"], 0) + row["bytes"]
    for row in record.shapes:
        found.setdefault(row["device"], Place(row["device"]))
    return sorted(found.values(), key=lambda place: device_order(place.device))


def stage(record: Record) -> str:
    """Where the run took place: ``8 virtual devices``, ``the host and 2 real devices``, ``the host``."""
    used = record.devices["used"]
    count = sum(device != "cpu" for device in used)
    if not count:
        return "the host"
    counted = f"{count} {record.execution} device{'s' if count > 1 else ''}"
    return f"the host and {counted}" if "cpu" in used else counted


def device_order(device: str) -> tuple[int, str, int]:
    """A sort key: the host, then devices by kind and index, ``cuda:10`` after ``cuda:9``."""
    kind, _, index = device.partition(":")
    return (1 if index else 0, kind, int(index) if index.isdecimal() else -1)


def replicated_bytes(record: Record) -> int:
    """Bytes of parameters and buffers that one forward copies to further devices."""
    return sum(row["bytes"] * len(row["replicas"]) for row in record.device_map)


def parameter_bytes(record: Record) -> int:
    """Bytes of the model's parameters and buffers, copies not counted."""
    return sum(row["bytes"] for row in record.device_map)


def split_module(group: Batches) -> list[str]:
    """The outermost modules that ran as replicas."""
    inside = [call.module for call in group.calls if call.scope == "replica"]
    return [
        module
        for module in inside
        if not any(other != module and (other == "" or module.startswith(other + ".")) for other in inside)
    ]


def moves(record: Record) -> list[Move]:
    """What the largest batch moves: scatter and gather by replica, replicas' parameters, transfers.

    Ranks fetch their own rows and keep their own copies: between them only gradients move.
    """
    if record.devices.get("ranks"):
        return _all_reduced(record)
    groups = batches(record)
    if not groups:
        return []
    group = max(groups, key=lambda one: one.rows)
    output = record.devices.get("output") or "cpu"
    found: list[Move] = []
    ids = id_shapes(record, group)
    for call in group.calls:
        if call.module == TRANSFER or call.module.endswith(".transfer"):
            count = sum(tensor_bytes(record, dims) for dims in call.outputs[0])
            found.append(Move("transfer", "cpu", call.devices[0], count))
    for module in split_module(group):
        call = next(one for one in group.calls if one.module == module and one.scope == "replica")
        first = call.devices[0]
        for device, inputs, outputs in zip(call.devices, call.inputs, call.outputs, strict=True):
            received = sum(tensor_bytes(record, dims, ids) for dims in inputs)
            returned = sum(tensor_bytes(record, dims) for dims in outputs)
            found.append(Move("scatter", first, device, received))
            found.append(Move("gather", device, output, returned))
    found += _replicas(record.device_map)
    return [move for move in found if move.source != move.target and move.bytes]


def _all_reduced(record: Record) -> list[Move]:
    """A ring's all-reduce: a rank sends 2 (n - 1) / n of the gradients that all hold to the next."""
    ring = [rank["device"] for rank in record.devices["ranks"]]
    held = sum(row["bytes"] for row in record.device_map if row["kind"] == "parameter" and row["replicas"])
    sent = 2 * (len(ring) - 1) * held // len(ring)
    pairs = zip(ring, ring[1:] + ring[:1], strict=True)
    return [Move("all-reduce", source, target, sent) for source, target in pairs if sent]


def tensor_bytes(record: Record, dims: list[int], ids: Ids = frozenset()) -> int:
    """Bytes of a tensor of this shape: in the run's dtype, or of 8-byte ids where it is one of those."""
    word = "int64" if tuple(dims) in ids else record.config.get("dtype", "float32")
    return units.elements(dims) * units.word_bytes(word)


def id_shapes(record: Record, group: Batches) -> Ids:
    """The shapes of what embeddings look up: they give one dimension more, the table's width."""
    widths = {row["module"]: row["shape"][1] for row in record.device_map if len(row["shape"]) == 2}
    return frozenset(
        tuple(inputs[0])
        for call in group.calls
        for inputs, outputs in zip(call.inputs, call.outputs, strict=True)
        if inputs and outputs and outputs[0] == [*inputs[0], widths.get(call.module)]
    )


def _replicas(device_map: list[Row]) -> list[Move]:
    total: dict[tuple[str, str], int] = {}
    for row in device_map:
        for device in row["replicas"]:
            key = (row["device"], device)
            total[key] = total.get(key, 0) + row["bytes"]
    return [Move("replicate", source, target, count) for (source, target), count in total.items()]
