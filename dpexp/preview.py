"""Preview: what a run would do, for ``--dry-run``: devices, device map and batch split.

The model is built and laid out, but computes nothing; nothing is written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dpexp import devices, loop
from dpexp.config import RunConfig
from dpexp.observe import device_map
from dpexp.parallel import pieces
from dpexp.record import Row
from dpexp.strategies.wrapping import Wrapper, parts
from dpexp.timing import Timer


@dataclass(frozen=True)
class Preview:
    """A run that was not run. ``splits`` say how an epoch's batches fall into replicas, by wrapped module."""

    name: str
    execution: str
    config: Row
    devices: Row
    device_map: list[Row]
    splits: list[Row]


def preview(config: RunConfig) -> Preview:
    """Lay the model out and predict the split of an epoch's batches. Raises ConfigError as a run would."""
    prepared = loop.prepare(config, try_one_batch=False)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    full, rest = divmod(prepared.data.samples, config.batch_size)
    sizes = Counter({config.batch_size: full, rest: 1 if rest else 0})
    splits: list[Row] = []
    wrapped = {
        part.name: part.module.places for part in parts(placed.module) if isinstance(part.module, Wrapper)
    }
    for module, places in wrapped.items():
        for rows, batches in sizes.items():
            if places and batches:
                cut = pieces(rows, places)
                used = [devices.label(device) for device in places[: len(cut)]]
                splits.append(
                    {"module": module, "rows": rows, "batches": batches, "pieces": cut, "devices": used}
                )
    return Preview(
        prepared.name,
        prepared.execution,
        config.to_dict(),
        loop.devices_of(prepared, placed),
        device_map(placed),
        splits,
    )
