"""Batches: the shapes of a run, equal batches together, and the replicas of one module in one call."""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from dpexp.config.mesh import Mesh
from dpexp.config.words import plural, ranges
from dpexp.record.record import Record, Row

Shape = list[int]
_CONTENT = itemgetter("module", "scope", "replica", "device", "inputs", "outputs")


@dataclass
class Call:
    """A module's call in one batch: outside of the replicas, or inside all of them together.

    ``inputs`` and ``outputs`` have one list of shapes for each replica; outside of replicas, one list.
    ``rows`` are the Record's, of the first batch with these shapes.
    """

    module: str
    scope: str
    devices: list[str] = field(default_factory=list)
    inputs: list[list[Shape]] = field(default_factory=list)
    outputs: list[list[Shape]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list, repr=False, compare=False)

    @property
    def name(self) -> str:
        """``block1``, or ``(model)``."""
        return self.module or "(model)"

    @property
    def where(self) -> str:
        """``cpu`` outside, ``2 replicas`` inside."""
        return plural(len(self.devices), "replica") if self.scope == "replica" else self.devices[0]


@dataclass
class Batches:
    """The batches of one epoch that have the same shapes.

    ``same_rows`` are the replicas that compute each part of the rows, where several compute the same part.
    """

    numbers: list[int]
    calls: list[Call]
    same_rows: tuple[tuple[int, ...], ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the global batch: the leading dimension of the first input outside of replicas."""
        outside = next((call for call in self.calls if call.scope == "outside"), None)
        return _leading(outside.inputs[0]) if outside else sum(self.parts)

    @property
    def split(self) -> list[int]:
        """Rows of each replica; empty where no batch was split."""
        replicas = next((call for call in self.calls if call.scope == "replica"), None)
        return [_leading(inputs) for inputs in replicas.inputs] if replicas else []

    @property
    def parts(self) -> list[int]:
        """Rows of each part of the batch: what replicas that compute the same rows have counts once."""
        split = self.split
        return [split[replicas[0]] for replicas in self.same_rows] or split

    @property
    def replicated(self) -> list[Call]:
        """The calls of the outermost modules that ran as replicas."""
        calls = [call for call in self.calls if call.scope == "replica"]
        if model := [call for call in calls if call.module == ""]:
            return model
        outer = tuple(f"{call.module}." for call in calls)
        return [call for call in calls if not call.module.startswith(outer)]

    @property
    def name(self) -> str:
        """``batches 0-2, 5``, ``batch 3``."""
        return named(self.numbers)


def named(numbers: list[int]) -> str:
    """The batches of these numbers: ``batches 0-2, 5``, ``batch 3``."""
    return f"batch{'es' * (len(numbers) > 1)} {', '.join(ranges(numbers))}"


def unobserved(record: Record) -> list[int]:
    """The numbers of the batches of an epoch whose shapes were not observed; a watched loop has no epochs."""
    samples, size = record.data.get("samples"), record.config.get("batch_size")
    if not record.shapes or not samples or not size:
        return []
    count = record.data.get("batches") or -(-samples // size)
    return sorted({*range(count)} - {row["batch"] for row in record.shapes})


def batches(record: Record) -> list[Batches]:
    """The batches in order; batches with equal shapes form one group, whatever the order of the threads."""
    by_batch: dict[int, list[Row]] = {}
    for row in record.shapes:
        by_batch.setdefault(row["batch"], []).append(row)
    groups: dict[str, Batches] = {}
    same_rows = _same_rows(record)
    before: list[Any] = []
    group = Batches([], [])
    for number, rows in sorted(by_batch.items()):
        content = list(map(_CONTENT, rows))
        if content != before:  # the usual case of equal batches needs no more than this
            calls, before = _calls(rows), content
            group = groups.setdefault(str(sorted(map(repr, calls))), Batches([], calls))
            if len(group.split) == sum(map(len, same_rows)):
                group.same_rows = same_rows
        group.numbers.append(number)
    return list(groups.values())


def largest(groups: list[Batches]) -> Batches | None:
    """The group of the largest batch; None without any."""
    return max(groups, key=lambda group: group.rows, default=None)


def _same_rows(record: Record) -> tuple[tuple[int, ...], ...]:
    """The ranks that compute each part of a batch; empty where each computes its own."""
    ranks, text = len(record.devices.get("ranks") or ()), record.config.get("mesh")
    if not ranks or not text:
        return ()
    mesh = Mesh.parse(text)
    return mesh.ranks_by_dp_rank if mesh.dp_size < ranks == mesh.size else ()


def _leading(shapes: list[Shape]) -> int:
    """The leading dimension of the first shape that has one."""
    return next((dims[0] for dims in shapes if dims), 0)


def _calls(rows: list[Row]) -> list[Call]:
    """The calls of one batch by their modules' first call, each with its replicas in order."""
    calls: dict[tuple[str, str], Call] = {}
    first = {row["module"]: index for index, row in reversed(list(enumerate(rows)))}
    for row in sorted(rows, key=lambda row: -1 if row["replica"] is None else row["replica"]):
        key = (row["module"], row["scope"])
        call = calls[key] if key in calls else calls.setdefault(key, Call(*key))
        call.devices.append(row["device"])
        call.inputs.append(row["inputs"])
        call.outputs.append(row["outputs"])
        call.rows.append(row)
    return sorted(calls.values(), key=lambda call: (first[call.module], call.scope == "replica"))


def model_rows(record: Record) -> list[Row]:
    """The rows of the device map for parameters and buffers."""
    return [row for row in record.device_map if row["kind"] != "optimizer"]


def optimizer_rows(record: Record) -> list[Row]:
    """The rows of the device map for what the optimizer keeps of the parameters."""
    return [row for row in record.device_map if row["kind"] == "optimizer"]


def without_host(record: Record) -> list[str]:
    """The devices in use, without the host."""
    return [device for device in record.devices["used"] if device != "cpu"]


def replicated_bytes(record: Record) -> int:
    """Bytes of parameters and buffers that one forward copies to other devices."""
    return sum(row["bytes"] * len(row["replicas"]) for row in model_rows(record))


def parameter_bytes(record: Record) -> int:
    """Bytes of the model's parameters and buffers, copies not counted."""
    return sum(row["bytes"] for row in model_rows(record))
