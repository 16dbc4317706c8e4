"""Bandwidth: what memory gives to a lookup of random rows, and the link to a copy, beside a hybrid's stages.

    memory   random rows, as wide as the run's, of a table that no cache holds    bytes/s
    link     a copy of a batch's vectors, from pinned memory to the device        bytes/s

Measured in less than 0.2 s after all that a run records of its training, by one process. A virtual device
has no link; a table in a file may have to be read from its disk, and several processes share the memory.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.record.figures.step_times import spread
from dpexp.record.record import Row
from dpexp.strategies.placed import Placed
from dpexp.strategies.tables import Table, is_mapped, tables

SECONDS = 0.03
"""Each probe ends after this time and ``LEAST`` samples."""
LEAST = 3
TABLE_BYTES, LOOKUP_BYTES = 1 << 26, 1 << 20
"""Of the table, and of the rows that are looked up at a time: enough that the call itself does not count."""


@dataclass
class Traffic:
    """Bytes of a step: of the rows that each table on the host looks up, and of what is copied from there."""

    looked_up: Counter[Table] = field(default_factory=Counter)
    copied: int = 0
    device: torch.device = devices.HOST

    def add_rows(self, table: Table, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A hook before the forward of a table."""
        ids = args[0] if args else kwargs["input"]
        self.looked_up[table] += ids.numel() * row_bytes(table)

    def add_copy(self, _: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        """A hook after the forward of a module on the host."""
        self.copied += sum(tensor.numel() * tensor.element_size() for tensor in tensors.walk(outputs))


def row_bytes(table: Table) -> int:
    """Bytes of a row of the table."""
    return int(table.weight.shape[1] * table.weight.element_size())


@contextmanager
def observed_traffic(placed: Placed) -> Iterator[Traffic]:
    """What the modules on the host look up and copy in the forward inside; without such modules nothing."""
    found = Traffic(device=placed.output_device)
    with ExitStack() as hooks:
        for module in dict.fromkeys(placed.host_modules):
            hooks.enter_context(module.register_forward_hook(found.add_copy))
            for table in tables(module):
                hooks.enter_context(table.register_forward_pre_hook(found.add_rows, with_kwargs=True))
        yield found


def bandwidths(traffic: Traffic) -> Row:
    """``memory`` and ``link`` of a Record's ``work``: the bytes of a step, and the spread of the bytes/s.

    What cannot be measured, as without room for the probe, is left out: the run is complete.
    """
    found: Row = {}
    if traffic.looked_up and not any(is_mapped(table.weight) for table in traffic.looked_up):
        (table, _), *_ = traffic.looked_up.most_common(1)
        figures = {"bytes": traffic.looked_up.total(), "row_bytes": row_bytes(table)}
        with suppress(RuntimeError):
            rates = memory_rates(row_bytes(table), table.weight.dtype)
            found["memory"] = figures | {"bytes_per_s": spread(rates)}
    if traffic.copied and devices.has_link(traffic.device):
        with suppress(RuntimeError):
            rates = link_rates(traffic.copied, traffic.device)
            found["link"] = {"bytes": traffic.copied, "bytes_per_s": spread(rates)}
    return found


def memory_rates(width: int, dtype: torch.dtype) -> list[float]:
    """Bytes/s of lookups of random rows of ``width`` bytes. Draws from a generator of its own."""
    rng = torch.Generator().manual_seed(0)
    rows, count = max(2, TABLE_BYTES // width), max(1, LOOKUP_BYTES // width)
    table = torch.ones(rows, width // dtype.itemsize, dtype=dtype)
    found = torch.empty(count, table.shape[1], dtype=dtype)

    def seconds() -> float:
        ids = torch.randint(rows, (count,), generator=rng)
        start = time.perf_counter()
        torch.index_select(table, 0, ids, out=found)
        return time.perf_counter() - start

    return [count * width / each for each in _samples(seconds)]


def link_rates(size: int, device: torch.device) -> list[float]:
    """Bytes/s of copies of ``size`` bytes from pinned memory to the device."""
    on_host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    moved = torch.empty_like(on_host, device=device, pin_memory=False)

    def seconds() -> float:
        devices.synchronize([device])
        start = time.perf_counter()
        moved.copy_(on_host, non_blocking=True)
        devices.synchronize([device])
        return time.perf_counter() - start

    return [size / each for each in _samples(seconds)]


def _samples(seconds: Callable[[], float]) -> list[float]:
    """The seconds of one sample after the other, the first, which warms up, left out."""
    started, found = time.perf_counter(), list[float]()
    seconds()
    while len(found) < LEAST or time.perf_counter() - started < SECONDS:
        found.append(seconds())
    return found
