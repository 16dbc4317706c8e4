"""Peak: the FLOP/s of a device in products of square matrices, to which the FLOP/s of runs compare."""

import os
import time
from collections.abc import Sequence

import torch

from dpexp import devices
from dpexp.distributed.group import ProcessGroup
from dpexp.record.record import Row
from dpexp.record.steps import spread

SECONDS, LEAST = 0.1, 3
"""The probe ends after this time, and so many products."""
PRODUCT_SECONDS = 0.004
"""The matrices grow until a product takes this long, or to ``LARGEST`` rows."""
SMALLEST, LARGEST = 256, 4096
LEAST_FLOPS = 1_000_000
"""The time of a smaller step is not that of arithmetic, and says nothing beside a peak."""


def peak(used: Sequence[torch.device], group: ProcessGroup, cpu: str, dtype: str, flops: int) -> Row:
    """``{device, dtype, threads, size, flops_per_s, devices}`` beside a step of so many FLOPs.

    ``cpu`` is the name of the host's processor. ``devices`` is how many such devices, or processes on the
    host, the run's FLOP/s are a share of. Empty for small steps and several hosts, and where it is not known.
    """
    device = next((each for each in used if each.type != "cpu"), devices.HOST)
    is_known = device.type in ("cpu", "cuda") and len({member.host for member in group.members}) < 2
    if flops < LEAST_FLOPS or not is_known:
        return {}
    threads = torch.get_num_threads()
    cores = max(1, (os.cpu_count() or 1) // threads)
    size, rates = product_rates(device, getattr(torch, dtype))
    return {
        "device": cpu if device.type == "cpu" else torch.cuda.get_device_name(device),
        "dtype": dtype,
        "threads": threads,
        "size": size,
        "flops_per_s": spread(rates),
        "devices": min(group.size, cores) if device == devices.HOST else max(group.size, len(used)),
    }


def product_rates(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """(rows of the matrices, FLOP/s of each product)."""
    size = SMALLEST
    while True:
        matrix = torch.ones(size, size, dtype=dtype, device=devices.physical(device))
        product = matrix @ matrix
        seconds = [_seconds(matrix, product) for _ in range(LEAST)]
        if size >= LARGEST or min(seconds) >= PRODUCT_SECONDS:
            break
        size *= 2
    started, seconds = time.perf_counter(), []
    while len(seconds) < LEAST or time.perf_counter() - started < SECONDS:
        seconds.append(_seconds(matrix, product))
    return size, [2 * size**3 / each for each in seconds]


def _seconds(matrix: torch.Tensor, product: torch.Tensor) -> float:
    """The time of a product, from idle device to idle device."""
    devices.synchronize([matrix.device])
    start = time.perf_counter()
    torch.mm(matrix, matrix, out=product)
    devices.synchronize([matrix.device])
    return time.perf_counter() - start
