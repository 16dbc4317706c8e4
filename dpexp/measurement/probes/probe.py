"""Probe: measures for a moment, after all that a run records of its training, what the machine gives.

    probed(peak=…, memory=…, link=…)    the rows of those that have one
      rates(bytes, sample, …)           samples for some time, as bytes/s
        seconds(operation, device)      one sample

A probe draws no random number of others, and what cannot be measured is left out: the run is complete.
"""

import contextlib
import time
from collections.abc import Callable

import torch

from dpexp import devices
from dpexp.record.record import Row

LEAST = 3
"""The fewest samples of a probe."""


def probed(**probes: Callable[[], Row]) -> Row:
    """{name: row} of the probes that have one: the row of what is not to be measured is empty."""
    found: Row = {}
    for name, probe in probes.items():
        with contextlib.suppress(RuntimeError):  # no room for it, or no such operation on the device
            if row := probe():
                found[name] = row
    return found


def rates(amount: float, sample: Callable[[], float], least_s: float) -> list[float]:
    """The amount divided by the seconds of each sample, for so long and for ``LEAST`` samples.

    The first one, which warms up, is left out.
    """
    sample()
    started, found = time.perf_counter(), list[float]()
    while len(found) < LEAST or time.perf_counter() - started < least_s:
        found.append(amount / sample())
    return found


def seconds(operation: Callable[[], object], device: torch.device) -> float:
    """The time of an operation, from idle device to idle device."""
    devices.synchronize([device])
    start = time.perf_counter()
    operation()
    devices.synchronize([device])
    return time.perf_counter() - start
