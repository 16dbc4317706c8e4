"""Shapes: the rows of batches, how they are split, and the bytes that go with them."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from dpexp.config.mesh import Mesh
from dpexp.config.ranges import plural
from dpexp.record.consistency.steps import batches_per_epoch
from dpexp.record.figures.phase_times import rows_of
from dpexp.record.record import Record, Row

Shape = list[int]
ITEM_BYTES = (1, 2, 4, 8, 16)
"""Bytes of a number, of any type."""
_MOST_TENSORS = 4
"""Of a call with more, the bytes are not compared with the shapes: there are too many types to try."""


def _batches(record: Record) -> Iterator[str]:
    """Batches of an epoch were observed, on devices in use."""
    size, samples = record.config.get("batch_size"), record.data.get("samples")
    if not size or not samples or not record.config.get("strategy"):
        return
    count, used = batches_per_epoch(record), {"cpu", *record.devices["used"]}
    numbers = list(dict.fromkeys(row["batch"] for row in record.shapes))
    if numbers and (numbers[0], numbers[-1]) != (0, count - 1):
        yield f"shapes are of batches {numbers}, but data.samples give an epoch of {count}"
    if other := {row["device"] for row in record.shapes} - used:
        yield f"shapes are on {', '.join(sorted(other))}, not one of its devices.used"


def _rows(record: Record) -> Iterator[str]:
    """What goes into the model are the rows of the batch: all of them, or by rank; not in a user's layout."""
    if record.config.get("layout") or not record.config.get("strategy"):
        return
    ranks: dict[int, dict[int | None, int]] = {}
    for row in record.shapes:
        rows = rows_of(record, row["batch"])
        leading = {shape[0] for shape in row["inputs"] if shape}
        if row["module"] or rows is None or not leading:
            continue
        if len(leading) > 1:
            yield f"shapes of batch {row['batch']} have {sorted(leading)} rows in one call of the model"
        elif row["scope"] == "outside" and leading != {rows}:
            number = plural(leading.pop(), "row")
            yield f"shapes of batch {row['batch']} have {number}, but the batch has {rows}"
        elif row["scope"] == "replica" and record.devices.get("ranks"):
            ranks.setdefault(row["batch"], {}).setdefault(row["replica"], leading.pop())
    for batch, found in ranks.items():
        size, rows = len(record.devices["ranks"]), rows_of(record, batch)
        same = size // _mesh(record, size).dp_size
        if sum(found.values()) != same * (rows or 0):
            yield f"shapes of batch {batch} have rows {found} by rank, but the batch has {rows}"


def _replica_devices(record: Record) -> Iterator[str]:
    """A replica, or rank, is on one device wherever it computes; what stays on the host is on ``cpu``."""
    devices = {rank["rank"]: rank["device"] for rank in record.devices.get("ranks", ())}
    for row in record.shapes:
        if row["replica"] is None or row["device"] == "cpu":
            continue
        device = devices.setdefault(row["replica"], row["device"])
        if row["device"] != device:
            yield f"shapes have replica {row['replica']} on {row['device']} and on {device}"


def _mesh(record: Record, size: int) -> Mesh:
    """How the ranks share the rows."""
    text = record.config.get("mesh")
    return Mesh.parse(text) if text else Mesh.of_rows(size)


def _replicas(record: Record) -> Iterator[str]:
    """Replicas get the rows of a call as ``tensor.chunk`` splits them, and what they give is gathered."""
    outside: dict[tuple[int, str], list[Row]] = {}
    inside: dict[tuple[int, str], list[Row]] = {}
    for row in record.shapes:
        if row["scope"] == "outside":
            outside.setdefault((row["batch"], row["module"]), []).append(row)
        elif "bytes" in row:
            inside.setdefault((row["batch"], row["module"]), []).append(row)
    for key, rows in inside.items():
        calls = outside.get(key, [])
        numbers = [row["replica"] for row in rows]
        if len(calls) != 1 or len(set(numbers)) != len(numbers):
            continue  # a module that is called several times in a step
        name = f"shapes of {key[1] or 'the model'} in batch {key[0]}"
        if numbers != list(range(len(numbers))):
            yield f"{name} are of replicas {numbers}"
        for what in ("inputs", "outputs"):
            parts = [row[what] for row in rows]
            if not _are_parts(parts, calls[0][what], is_chunked=what == "inputs"):
                yield f"{name}: the replicas' {what} {parts} are not the parts of {calls[0][what]}"


def _are_parts(parts: Sequence[list[Shape]], together: list[Shape], *, is_chunked: bool) -> bool:
    """Whether each tensor is that of all replicas, one after the other in dimension 0; scalars, a vector."""
    if any(len(part) != len(together) for part in parts):
        return False
    for tensors, shape in zip(zip(*parts, strict=True), together, strict=True):
        sizes = [tensor[0] if tensor else 1 for tensor in tensors]
        if [sum(sizes)] != shape[:1] or any(tensor[1:] != shape[1:] for tensor in tensors):
            return False
        if is_chunked and (set(sizes[:-1]) > {sizes[0]} or sizes[-1] > sizes[0]):
            return False
    return True


def _bytes(record: Record) -> Iterator[str]:
    """Bytes are those of the shapes: of each tensor of a call, in all batches and replicas of one type.

    Gradients have the type of what they are of, and not every tensor has one.
    """
    calls: dict[tuple[str, str, int], list[_Counted]] = {}
    seen: dict[tuple[str, int, int | None], int] = {}
    for row in record.shapes:
        place = row["module"], row["batch"], row["replica"]
        seen[place] = number = seen.get(place, -1) + 1
        for what, counted in _counted(row):
            calls.setdefault((row["module"], what, number), []).append(counted)
    for (module, what, _), found in calls.items():
        if not _is_explained(found, may_be_absent=what == "moved"):
            yield f"shapes of {module or 'the model'}: no types of its tensors give the bytes of its {what}"


_Counted = tuple[tuple[int, ...], int, int | None]
"""(numbers in each tensor, bytes of all, bytes of their gradients if known)"""


def _counted(row: Row) -> Iterator[tuple[str, _Counted]]:
    """What a row of the shapes counts: inputs and outputs of a replica, what is moved."""
    numbers = {key: tuple(map(math.prod, row[key])) for key in ("inputs", "outputs")}
    found = row.get("bytes", {})
    for key in (key for key in numbers if key in found):
        yield key, (numbers[key], found[key], found.get(f"{key.removesuffix('s')}_gradients"))
    if "moved" in row:
        back = sum(row["moved_back"].values()) if "moved_back" in row else None
        yield "moved", (numbers["inputs"], sum(row["moved"].values()), back)


def _is_explained(counted: Sequence[_Counted], *, may_be_absent: bool) -> bool:
    """Whether one type for each tensor gives all these bytes; what is there already is not moved."""
    lengths = {len(numbers) for numbers, _, _ in counted}
    if len(lengths) != 1 or max(lengths) > _MOST_TENSORS:
        return True
    calls, (length,) = set(counted), lengths
    for types in product((0, *ITEM_BYTES) if may_be_absent else ITEM_BYTES, repeat=length):
        if all(_sum(numbers, types) == count for numbers, count, _ in calls):
            for trained in product((0, 1), repeat=length):
                of_gradients = [size * each for size, each in zip(types, trained, strict=True)]
                if all(back in (None, _sum(numbers, of_gradients)) for numbers, _, back in calls):
                    return True
    return False


def _sum(numbers: Sequence[int], sizes: Sequence[int]) -> int:
    return sum(map(math.prod, zip(numbers, sizes, strict=True)))


def _counts(record: Record) -> Iterator[str]:
    """Looked-up rows and ids that are asked for are at most the ids that go in; collectives are of ranks."""
    for row in record.shapes:
        ids = sum(map(math.prod, row["inputs"]))
        for key, count in (("looked_up", row.get("looked_up", 0)), ("asked", sum(row.get("asked", ())))):
            if not 0 <= count <= ids:
                yield f"shapes of {row['module']} have {key} {count}, of {plural(ids, 'id')}"
    ranks = len(record.devices.get("ranks", ()))
    for row in record.summary.get("collectives", ()):
        if not (0 <= row["rank"] < ranks and 0 <= row.get("to", 0) < ranks and row["bytes"] >= 0):
            yield f"summary.collectives have {row}, but there are {plural(ranks, 'rank')}"


RULES = (_batches, _rows, _replicas, _replica_devices, _bytes, _counts)
