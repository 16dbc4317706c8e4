"""Bandwidth: what memory gives to a lookup of random rows, and the link to a copy, beside a hybrid's stages.

Several processes share the memory, so that only a run of one measures it.
"""

from functools import partial

import torch

from dpexp import devices
from dpexp.measurement.probes.host_traffic import HostTraffic, row_bytes
from dpexp.measurement.probes.probe import rates, seconds
from dpexp.record.figures.step_times import spread
from dpexp.record.record import Row
from dpexp.strategies.modules.tables import is_mapped

_SECONDS = 0.03
"""Each probe ends after this time."""
TABLE_BYTES, LOOKUP_BYTES = 1 << 26, 1 << 20
"""Of a table that no cache holds, and of the rows of a lookup: enough that the call itself does not count."""


def memory(traffic: HostTraffic) -> Row:
    """``{bytes, row_bytes, bytes_per_s}``: of a step's lookups, and the spread of the probe's rates.

    Empty without tables, and where one lies in a file: it may have to be read from its disk.
    """
    if not traffic.looked_up or any(is_mapped(table.weight) for table in traffic.looked_up):
        return {}
    (table, _), *_ = traffic.looked_up.most_common(1)
    width = row_bytes(table)
    found = spread(memory_rates(width, table.weight.dtype))
    return {"bytes": traffic.looked_up.total(), "row_bytes": width, "bytes_per_s": found}


def memory_rates(width: int, dtype: torch.dtype) -> list[float]:
    """Bytes/s of lookups of random rows of ``width`` bytes."""
    rng = torch.Generator().manual_seed(0)
    rows, count = max(2, TABLE_BYTES // width), max(1, LOOKUP_BYTES // width)
    table = torch.ones(rows, width // dtype.itemsize, dtype=dtype)
    found = torch.empty(count, table.shape[1], dtype=dtype)

    def sample() -> float:
        ids = torch.randint(rows, (count,), generator=rng)
        return seconds(lambda: torch.index_select(table, 0, ids, out=found), devices.HOST)

    return rates(count * width, sample, _SECONDS)


def link(traffic: HostTraffic) -> Row:
    """``{bytes, bytes_per_s}``: of a step's copies, and the spread of the probe's rates.

    Empty for a virtual device, which has no link.
    """
    if not traffic.copied or not devices.has_link(traffic.device):
        return {}
    return {"bytes": traffic.copied, "bytes_per_s": spread(link_rates(traffic.copied, traffic.device))}


def link_rates(size: int, device: torch.device) -> list[float]:
    """Bytes/s of copies of ``size`` bytes from pinned memory to the device."""
    on_host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    moved = torch.empty_like(on_host, device=device, pin_memory=False)
    copy = partial(moved.copy_, on_host, non_blocking=True)
    return rates(size, lambda: seconds(copy, device), _SECONDS)
