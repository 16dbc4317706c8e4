"""Layout: the device map against itself, the devices in use, and the memory of the observed step."""

import math
from collections import Counter
from collections.abc import Iterator

from dpexp.config.ranges import plural
from dpexp.record.device_map import model_rows, optimizer_rows
from dpexp.record.record import Record, Row

ITEM_BYTES = {
    **dict.fromkeys(("float64", "complex64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "complex32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    "complex128": 16,
}
"""Bytes of a number, by type."""
CATEGORIES = {"parameters": "parameter", "buffers": "buffer", "optimizer": "optimizer"}
"""The figures of a row of ``memory_use`` that the device map gives, and the kind of its rows."""


def _name(row: Row) -> str:
    return f"device_map of {row['module']}.{row['parameter']}".replace(" of .", " of ")


def _bytes(record: Record) -> Iterator[str]:
    """Bytes follow from shape and type; of a shard from its own shape."""
    for row in record.device_map:
        count = math.prod(row["local_shape"] if "local_shape" in row else row["shape"])
        size = ITEM_BYTES.get(row["dtype"])
        if size is not None and row["bytes"] != count * size:
            found, numbers = plural(row["bytes"], "byte"), plural(count, "number")
            yield f"{_name(row)} has {found}, but {numbers} of {row['dtype']}"


def _shards(record: Record) -> Iterator[str]:
    """Along each dimension, the shards of all ranks are the tensor, so often as ranks have the same part."""
    shards: dict[tuple[str, str, str], list[Row]] = {}
    for row in (row for row in record.device_map if "local_shape" in row and "rank" in row):
        shards.setdefault((row["kind"], row["module"], row["parameter"]), []).append(row)
    for rows in shards.values():
        shape = rows[0]["shape"]
        if any(row["shape"] != shape or len(row["local_shape"]) != len(shape) for row in rows):
            yield f"{_name(rows[0])} has several shapes"
            continue
        for dim, size in enumerate(shape):
            together = sum(row["local_shape"][dim] for row in rows)
            if together % size if size and together else together != size:
                yield f"{_name(rows[0])} has {size} in dimension {dim}, but its shards have {together}"
            elif together and len(rows) % (together // size):
                yield f"{_name(rows[0])} has {size} in dimension {dim}, but {len(rows)} shards of {together}"


def _places(record: Record) -> Iterator[str]:
    """Parameters are on devices in use, and what an optimizer keeps is of one of them."""
    used = {"cpu", *record.devices["used"]}
    for row in record.device_map:
        if other := {row["device"], *row["replicas"]} - used:
            yield f"{_name(row)} is on {', '.join(sorted(other))}, not one of its devices.used"
        rank = row.get("rank")
        if rank is not None and not 0 <= rank < len(record.devices.get("ranks", ())):
            yield f"{_name(row)} is on rank {rank}, not one of its devices.ranks"
    names = {(row["module"], row["parameter"]) for row in model_rows(record)}
    for row in optimizer_rows(record):
        if (row["module"], row["parameter"].partition(":")[0]) not in names:
            yield f"{_name(row)} is kept of no parameter"


def _memory(record: Record) -> Iterator[str]:
    """Parameters, buffers and optimizer state of the observed step are those of the device map."""
    has_state = bool(optimizer_rows(record)) or not record.config.get("accumulate", 1) > 1
    ranks = record.devices.get("ranks", ())
    for row in record.memory_use:
        number = row.get("rank")
        of_rank = {"cpu", *(rank["device"] for rank in ranks if rank["rank"] == number)}
        if number is not None and not (number < len(ranks) and row["device"] in of_rank):
            yield f"memory_use of rank {number} is on {row['device']}, not as in its devices.ranks"
        found = _resident(record, row["device"], row.get("rank"))
        for category, kind in CATEGORIES.items():
            if category in row and row[category] != found[kind] and (kind != "optimizer" or has_state):
                where = row["device"] if row.get("rank") is None else f"rank {row['rank']}"
                yield (
                    f"memory_use.{category} of {where} is {plural(row[category], 'byte')}, "
                    f"but its device_map gives {found[kind]}"
                )


def _resident(record: Record, device: str, rank: int | None) -> Counter[str]:
    """{kind of rows: their bytes on a device, of one rank}; the host is a device of each rank."""
    found = Counter[str]()
    ranks = len(record.devices.get("ranks", ())) or 1
    for row in record.device_map:
        if row.get("rank") not in (None, rank):
            continue
        times = [row["device"], *row["replicas"]].count(device)
        found[row["kind"]] += row["bytes"] * (min(times, 1) if device == "cpu" and ranks > 1 else times)
    return found


RULES = (_bytes, _shards, _places, _memory)
