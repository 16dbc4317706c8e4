"""Machine peak: the FLOP/s of a device in products of square matrices, to which the FLOP/s of runs compare.

Measured in a tenth of a second where nothing else of the run computes, once for each machine, device, dtype
and number of threads, and kept in ``DPEXP_HOME/peaks.json``. A run that was faster measures it again: the
machine was busy then.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dpexp import devices
from dpexp.config.process import home
from dpexp.engine.facts.environment import cpu_name
from dpexp.engine.prepare import Prepared
from dpexp.record.figures.step_times import spread
from dpexp.record.journal.durable import write_atomically
from dpexp.record.record import Row

FILE = "peaks.json"
KEYS = {"device", "dtype", "threads", "size", "flops_per_s"}
SECONDS = 0.1
"""The probe ends after this time and three products."""
PRODUCT_SECONDS = 0.004
"""The matrices grow until a product takes this long, or to ``LARGEST`` rows."""
SMALLEST, LARGEST = 256, 4096
LEAST_FLOPS = 1_000_000
"""The time of a smaller step is not that of arithmetic, and says nothing beside a peak."""


def machine_peak(prepared: Prepared, flops: Mapping[str, int], step_s: float) -> Row:
    """``peak`` of a Record's ``work``; empty for small steps and several hosts, and where it is not known.

    ``step_s`` is the time that a step of these FLOPs took.

    ``devices`` is how many such devices, or processes on the host, the run's FLOP/s are a share of.
    """
    config, group, used = prepared.config, prepared.group, prepared.selection.used
    device = next((each for each in used if each.type != "cpu"), devices.HOST)
    is_known = device.type in ("cpu", "cuda") and len({member.host for member in group.members}) < 2
    if sum(flops.values()) < LEAST_FLOPS or not is_known:
        return {}
    cores = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
    count = min(group.size, cores) if device == devices.HOST else max(group.size, len(used))
    dtype, reached = getattr(torch, config.autocast or config.dtype), sum(flops.values()) / step_s / count
    try:
        return {"peak": kept_peak(home(), device, dtype, reached) | {"devices": count}}
    except RuntimeError:  # the device has no product of this dtype
        return {}


def kept_peak(home: Path, device: torch.device, dtype: torch.dtype, reached: float = 0.0) -> Row:
    """The peak of the device from the file in ``home``, or measured and added to it.

    Where a run has ``reached`` more FLOP/s than the kept peak, the larger one of two is kept.
    ``{device, dtype, threads, size, flops_per_s}``: the last is the spread of the products' rates.
    """
    name = cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(device)
    facts = {"device": name, "dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    key, path = " ".join(map(str, (platform.node(), *facts.values()))), home / FILE
    kept = _read(path)
    if key not in kept or kept[key]["flops_per_s"]["max"] < reached:
        size, rates = probe(device, dtype)
        measured = facts | {"size": size, "flops_per_s": spread(rates)}
        kept[key] = max(kept.get(key, measured), measured, key=lambda peak: peak["flops_per_s"]["max"])
        with contextlib.suppress(OSError):  # else the next run measures it again
            write_atomically(path, json.dumps(kept, indent=1).encode())
    found: Row = kept[key]
    return found


def _read(path: Path) -> dict[str, Any]:
    """The peaks in the file; none of a file that is missing or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    peaks = found.items() if isinstance(found, dict) else ()
    return {key: peak for key, peak in peaks if _is_whole(peak)}


def _is_whole(peak: Any) -> bool:
    rates = peak["flops_per_s"] if isinstance(peak, dict) and peak.keys() >= KEYS else None
    return isinstance(rates, dict) and isinstance(rates.get("max"), float)


def probe(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """(rows of the matrices, FLOP/s of each product). Draws no random numbers."""
    started, size, rates = time.perf_counter(), SMALLEST, list[float]()
    while True:
        matrix = torch.ones(size, size, dtype=dtype, device=devices.physical(device))
        for seconds in _times(matrix, device):
            is_short = seconds < PRODUCT_SECONDS and size < LARGEST
            if is_short:
                break
            rates.append(2 * size**3 / seconds)
            if len(rates) >= 3 and time.perf_counter() - started > SECONDS:
                return size, rates
        size, rates = 2 * size, []


def _times(matrix: torch.Tensor, device: torch.device) -> Iterator[float]:
    """The seconds of one product after the other, the first, which warms up, left out."""
    product = matrix @ matrix
    while True:
        devices.synchronize([device])
        start = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        devices.synchronize([device])
        yield time.perf_counter() - start
