"""Peak: the FLOP/s of a device in products of square matrices, to which the FLOP/s of runs compare.

Measured once for each machine, device, dtype and number of threads, and kept in ``DPEXP_HOME/peaks.json``. A
run that was faster measures it again: the machine was busy then.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpexp import devices
from dpexp.config.process import home
from dpexp.distributed.group import ProcessGroup
from dpexp.record.files import write_atomically
from dpexp.record.record import Row
from dpexp.record.steps import spread

_SECONDS, LEAST = 0.1, 3
"""The probe ends after this time, and so many samples."""
FILE = "peaks.json"
_KEYS = {"device", "dtype", "threads", "size", "flops_per_s"}
PRODUCT_SECONDS = 0.004
"""The matrices grow until a product takes this long, or to ``LARGEST`` rows."""
SMALLEST, LARGEST = 256, 4096
LEAST_FLOPS = 1_000_000
"""The time of a smaller step is not that of arithmetic, and says nothing beside a peak."""


def peak(
    used: Sequence[torch.device], group: ProcessGroup, cpu: str, dtype: str, flops: int, step_s: float
) -> Row:
    """``{device, dtype, threads, size, flops_per_s, devices}`` beside a step of so many FLOPs and seconds.

    ``cpu`` is the name of the host's processor. ``devices`` is how many such devices, or processes on the
    host, the run's FLOP/s are a share of. Empty for small steps and several hosts, and where it is not known.
    """
    device = next((each for each in used if each.type != "cpu"), devices.HOST)
    is_known = device.type in ("cpu", "cuda") and len({member.host for member in group.members}) < 2
    if flops < LEAST_FLOPS or not is_known:
        return {}
    cores = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
    count = min(group.size, cores) if device == devices.HOST else max(group.size, len(used))
    name = cpu if device.type == "cpu" else torch.cuda.get_device_name(device)
    kept = kept_peak(home() / FILE, name, device, getattr(torch, dtype), flops / step_s / count)
    return kept | {"devices": count}


def kept_peak(path: Path, name: str, device: torch.device, dtype: torch.dtype, reached: float = 0.0) -> Row:
    """The peak that the file has of a device of this name, or one that is measured and added to it.

    Where a run has ``reached`` more FLOP/s, the larger one of two is kept.
    """
    facts = {"device": name, "dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    key = " ".join(map(str, (platform.node(), *facts.values())))
    kept = _read_peaks(path)
    if key not in kept or kept[key]["flops_per_s"]["max"] < reached:
        size, found = product_rates(device, dtype)
        measured = facts | {"size": size, "flops_per_s": spread(found)}
        kept[key] = max(kept.get(key, measured), measured, key=lambda each: each["flops_per_s"]["max"])
        with contextlib.suppress(OSError):  # else the next run measures it again
            write_atomically(path, json.dumps(kept, indent=1).encode())
    row: Row = kept[key]
    return row


def _read_peaks(path: Path) -> dict[str, Any]:
    """The peaks in the file; none of a file that is missing or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {key: each for key, each in found.items() if _is_peak(each)} if isinstance(found, dict) else {}


def _is_peak(found: Any) -> bool:
    by = found["flops_per_s"] if isinstance(found, dict) and found.keys() >= _KEYS else None
    return isinstance(by, dict) and isinstance(by.get("max"), float)


def product_rates(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """(rows of the matrices, FLOP/s of each product)."""
    size = SMALLEST
    while True:
        matrix = torch.ones(size, size, dtype=dtype, device=devices.physical(device))
        sample = partial(_seconds, partial(torch.mm, matrix, matrix, out=matrix @ matrix), device)
        if size >= LARGEST or min(sample() for _ in range(LEAST)) >= PRODUCT_SECONDS:
            return size, _rates(2 * size**3, sample)
        size *= 2


def _rates(amount: float, sample: Callable[[], float]) -> list[float]:
    """The amount divided by the seconds of each sample; the first one, which warms up, is left out."""
    sample()
    started, found = time.perf_counter(), list[float]()
    while len(found) < LEAST or time.perf_counter() - started < _SECONDS:
        found.append(amount / sample())
    return found


def _seconds(operation: Callable[[], object], device: torch.device) -> float:
    """The time of an operation, from idle device to idle device."""
    devices.synchronize([device])
    start = time.perf_counter()
    operation()
    devices.synchronize([device])
    return time.perf_counter() - start
