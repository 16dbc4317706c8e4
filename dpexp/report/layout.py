"""Layout: which modules lie on which device, and the devices of a run in words."""

import math
from collections import Counter
from dataclasses import dataclass, field

from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.config.words import listed, merged, plural
from dpexp.record.batches import model_rows, optimizer_rows, without_host
from dpexp.record.record import Record, Row
from dpexp.report import units


@dataclass
class DeviceContents:
    """One device: bytes of parameters and buffers by module, the originals and the replicas' copies.

    ``full``: bytes of the modules' full tensors, of which a rank may have a shard; ``optimizer``: bytes of
    what the optimizer keeps of the parameters.
    """

    device: str
    own: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    full: Counter[str] = field(default_factory=Counter)
    optimizer: int = 0


def places(record: Record) -> list[DeviceContents]:
    """Every device that stores or computes something: the host first, then by index.

    Of a dry run of ranks it is not known what the others than the first one store.
    """
    devices = {record.devices["output"] or "cpu"}
    if record.status != "planned" or "ranks" not in record.devices:
        devices |= {*record.devices["used"], *(row["device"] for row in record.shapes)}
    for row in record.device_map:
        devices |= {_device_of(row), *row["replicas"]}
    contents = {device: DeviceContents(device) for device in sorted(devices, key=device_order)}
    for row in optimizer_rows(record):
        for device in (_device_of(row), *row["replicas"]):
            contents[device].optimizer += row["bytes"]
    for row in model_rows(record):
        place = contents[_device_of(row)]
        place.own[row["module"]] += row["bytes"]
        place.full[row["module"]] += _full_bytes(row)
        for device in row["replicas"]:
            contents[device].copies[row["module"]] += row["bytes"]
    has_host_ranks = any(device.startswith("cpu of rank") for device in contents)
    if has_host_ranks and "cpu" in contents and not contents["cpu"].own:
        del contents["cpu"]  # its ranks have all that the host has
    return list(contents.values())


def holds(place: DeviceContents) -> str:
    """The modules of a device: ``fc``, ``25% of block1, 265 B of 1.06 kB``, ``a copy of layers.0-11.fc``."""
    sizes = {name or "(model)": (count, place.full[name]) for name, count in place.own.items()}
    parts = merged((name, size) for name, size in sizes.items() if size[0] != size[1])
    texts = [
        f"{units.percent(count / full)} of {name}, {units.size(count)} of {units.size(full)}"
        for name, (count, full) in parts
    ]
    if len(texts) > 4:
        texts[3:] = [f"parts of {len(texts) - 3} more modules"]
    if full_modules := [name for name, (count, full) in sizes.items() if count == full]:
        texts.append(listed(full_modules, 4))
    text = "; ".join(texts)
    copies = f"a copy of {listed((name or '(model)' for name in place.copies), 4)}" if place.copies else ""
    return ", ".join(filter(None, [text, copies])) or "-"


def _device_of(row: Row) -> str:
    """The device of a row of the device map; of a shard on the host, with the rank that has it."""
    is_host_shard = row["device"] == "cpu" and row.get("placement")
    return f"cpu of rank {row.get('rank', 0)}" if is_host_shard else str(row["device"])


def _full_bytes(row: Row) -> int:
    """The bytes of the full tensor of a row, of which a rank may have a shard."""
    numbers = math.prod(row.get("local_shape") or row["shape"])
    size: int = row["bytes"]
    return size * math.prod(row["shape"]) // numbers if numbers else size


def emulation(record: Record) -> str:
    """Why a run whose user named no devices has virtual ones; empty for other runs."""
    options, is_chosen = STRATEGY_OPTIONS.get(record.strategy), record.devices["requested"] != ["auto"]
    if record.execution != "virtual" or is_chosen or options is None or not options.emulated:
        return ""
    count = len(without_host(record))
    return (
        f"this machine has no accelerator: the run emulates {count} (--virtual {count}); "
        "--devices cpu runs it as PyTorch does without one"
    )


def where(record: Record) -> str:
    """`` on 2 virtual devices: cpu:0, cpu:1; results on cpu:0``; empty for a Record without devices."""
    used = record.devices["used"]
    if not used:
        return ""
    return (
        f" on {stage(record)}: {units.device_names(used)}; results on {record.devices['output'] or used[0]}"
    )


def stage(record: Record) -> str:
    """The devices of a run in words: ``8 virtual devices``, ``the host and 2 real devices``, ``the host``.

    Ranks on the host, of a loop that is watched, are ``2 processes``.
    """
    used = without_host(record)
    count = len(used)
    if not count:
        return "the host"
    if record.execution == "real" and all(name.startswith("cpu:") for name in used):
        return plural(count, "process")
    counted = plural(count, f"{record.execution} device")
    return f"the host and {counted}" if "cpu" in record.devices["used"] else counted


def accelerator_names(record: Record) -> list[str]:
    """The names of the machine's accelerators, one for each."""
    return [str(accelerator["name"]) for accelerator in record.environment.get("accelerators") or []]


def device_order(device: str) -> tuple[int, str, int]:
    """A sort key: the host and its ranks, then devices by kind and index, ``cuda:10`` after ``cuda:9``."""
    host, _, rank = device.partition(" of rank ")
    if rank.isdecimal():
        return (0, host, int(rank))
    kind, _, index = device.partition(":")
    return (1 if index else 0, kind, int(index) if index.isdecimal() else -1)
