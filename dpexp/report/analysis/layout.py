"""The device map as a layout: which modules lie on which device, and what a step moves between devices."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from dpexp.config import STRATEGY_OPTIONS
from dpexp.record import Record, Row
from dpexp.report.analysis.shapes import Batches, Call, Shape, batches

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
TRANSFER = "embedding.transfer"
"""The module name under which hybrid records its transfer to the accelerator."""


@dataclass
class DeviceContents:
    """One device: bytes of parameters and buffers by module, the originals and the replicas' copies.

    ``optimizer``: bytes of what the optimizer keeps of the parameters.
    """

    device: str
    own: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    optimizer: int = 0

    @property
    def bytes(self) -> int:
        return self.own.total() + self.copies.total()


@dataclass(frozen=True)
class Move:
    """Bytes that one step of the largest batch moves between two devices, in the phase ``what``."""

    what: str
    source: str
    target: str
    bytes: int


def places(record: Record) -> list[DeviceContents]:
    """Every device that stores or computes something: the host first, then by index."""
    devices = {*record.devices["used"], record.devices["output"] or "cpu"}
    devices |= {row["device"] for row in record.device_map + record.shapes}
    devices |= {device for row in record.device_map for device in row["replicas"]}
    found = {device: DeviceContents(device) for device in sorted(devices, key=device_order)}
    for row in optimizer_rows(record):
        for device in (row["device"], *row["replicas"]):
            found[device].optimizer += row["bytes"]
    for row in model_rows(record):
        found[row["device"]].own[row["module"]] += row["bytes"]
        for device in row["replicas"]:
            found[device].copies[row["module"]] += row["bytes"]
    return list(found.values())


def model_rows(record: Record) -> list[Row]:
    """The rows of the device map for parameters and buffers."""
    return [row for row in record.device_map if row["kind"] != "optimizer"]


def optimizer_rows(record: Record) -> list[Row]:
    """The rows of the device map for what the optimizer keeps of the parameters."""
    return [row for row in record.device_map if row["kind"] == "optimizer"]


def emulation(strategy: str, execution: str, devices: Row) -> str:
    """Why a run whose user named no devices has virtual ones; empty for other runs."""
    options = STRATEGY_OPTIONS.get(strategy)
    if execution != "virtual" or devices["requested"] != ["auto"] or options is None or not options.emulated:
        return ""
    count = sum(device != "cpu" for device in devices["used"])
    return (
        f"this machine has no accelerator: the run emulates {count} (--virtual {count}); "
        "--devices cpu runs it as PyTorch does without one"
    )


def stage(record: Record) -> str:
    """The devices of a run in words: ``8 virtual devices``, ``the host and 2 real devices``, ``the host``."""
    count = len(without_host(record))
    if not count:
        return "the host"
    counted = f"{count} {record.execution} device{'s' if count > 1 else ''}"
    return f"the host and {counted}" if "cpu" in record.devices["used"] else counted


def without_host(record: Record) -> list[str]:
    """The devices in use, without the host."""
    return [device for device in record.devices["used"] if device != "cpu"]


def accelerator_names(record: Record) -> list[str]:
    """The names of the machine's accelerators, one for each."""
    return [str(accelerator["name"]) for accelerator in record.environment.get("accelerators") or []]


def device_order(device: str) -> tuple[int, str, int]:
    """A sort key: the host, then devices by kind and index, ``cuda:10`` after ``cuda:9``."""
    kind, _, index = device.partition(":")
    return (1 if index else 0, kind, int(index) if index.isdecimal() else -1)


def replicated_bytes(record: Record) -> int:
    """Bytes of parameters and buffers that one forward copies to other devices."""
    return sum(row["bytes"] * len(row["replicas"]) for row in model_rows(record))


def parameter_bytes(record: Record) -> int:
    """Bytes of the model's parameters and buffers, copies not counted."""
    return sum(row["bytes"] for row in model_rows(record))


def replicated_calls(group: Batches) -> list[Call]:
    """The calls of the outermost modules that ran as replicas."""
    calls = [call for call in group.calls if call.scope == "replica"]
    if any(call.module == "" for call in calls):
        return [call for call in calls if call.module == ""]
    return [call for call in calls if not any(call.module.startswith(f"{other.module}.") for other in calls)]


def moves(record: Record) -> list[Move]:
    """What the largest batch moves: scatter and gather for each replica, parameter copies, transfers.

    Ranks load their own rows and have their own copy of the model: between them, only gradients move. What
    the layout of a user moves is not known.
    """
    if record.config.get("layout"):
        return []
    if record.devices.get("ranks"):
        return _all_reduced(record)
    groups = batches(record)
    if not groups:
        return []
    group = max(groups, key=lambda group: group.rows)
    found: list[Move] = []
    for call in group.calls:
        if call.module.endswith(".transfer"):
            found.append(Move("transfer", "cpu", call.devices[0], tensor_bytes(record, call.outputs[0])))
    output, ids = record.devices["output"] or "cpu", id_shapes(record, group)
    for call in replicated_calls(group):
        for device, inputs, outputs in zip(call.devices, call.inputs, call.outputs, strict=True):
            found.append(Move("scatter", call.devices[0], device, tensor_bytes(record, inputs, ids)))
            found.append(Move("gather", device, output, tensor_bytes(record, outputs)))
    for row in model_rows(record):
        found += [Move("replicate", row["device"], device, row["bytes"]) for device in row["replicas"]]
    return [move for move in found if move.source != move.target and move.bytes]


def _all_reduced(record: Record) -> list[Move]:
    """A ring's all-reduce: each rank sends 2 (n - 1) / n of the replicated gradients to the next."""
    ring = [rank["device"] for rank in record.devices["ranks"]]
    replicated = [row for row in record.device_map if row["kind"] == "parameter" and row["replicas"]]
    sent = 2 * (len(ring) - 1) * sum(row["bytes"] for row in replicated) // len(ring)
    pairs = zip(ring, ring[1:] + ring[:1], strict=True)
    return [Move("all-reduce", source, target, sent) for source, target in pairs if sent]


def tensor_bytes(record: Record, shapes: Iterable[Shape], ids: Collection[tuple[int, ...]] = ()) -> int:
    """Bytes of tensors of these shapes: 8 a number for the shapes in ``ids``, else as in the run's dtype."""
    size = DTYPE_BYTES.get(record.config.get("dtype", "float32"), 4)
    return sum(math.prod(dims) * (8 if tuple(dims) in ids else size) for dims in shapes)


def id_shapes(record: Record, group: Batches) -> set[tuple[int, ...]]:
    """The input shapes of embeddings, whose outputs have one dimension more: the width of the table."""
    widths = {row["module"]: row["shape"][1] for row in model_rows(record) if len(row["shape"]) == 2}
    return {
        tuple(inputs[0])
        for call in group.calls
        for inputs, outputs in zip(call.inputs, call.outputs, strict=True)
        if inputs and outputs and outputs[0] == [*inputs[0], widths.get(call.module)]
    }
