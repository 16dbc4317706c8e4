"""Memory: what a watch needs beside the loop's own, whether that is free, and which replica fits.

of a rank                                               bytes
the replica, ``full``                                   all parameters, in the type of the forward
the replica, in ``blocks``                              the largest block, and what is outside of blocks
the sums of gradients, then the updated parameters      what it owns of them, in their types
a gradient on its way to the sums                       the largest parameter, twice, or a bucket
the activations of one call                             what the loop itself had at most, where that is known
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import psutil
import torch
from torch import nn

from dpexp.config.errors import NotComparableError
from dpexp.watch.expected import BUCKET
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""The limit of a group, and what it uses, in either version of control groups."""
Blocks = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank: what either replica and ``others`` need, and what is ``free``."""

    full: int
    blocks: int
    others: int
    free: int

    @classmethod
    def of(
        cls, parameters: Mapping[str, nn.Parameter], low: torch.dtype | None, blocks: Blocks, shards: Shards
    ) -> Memory:
        """Of the model that is laid out, by the names of its parameters."""
        size = {name: each.numel() * (low or each.dtype).itemsize for name, each in parameters.items()}
        of_blocks = [sum(size[name] for name in names) for names in blocks.values()]
        own = sum(
            prod(shards.shape(name)) * each.itemsize
            for name, each in parameters.items()
            if each.requires_grad
        )
        largest = max((each.numel() * each.itemsize for each in parameters.values()), default=0)
        device = next((each.device for each in parameters.values()), torch.device("cpu"))
        free, activations = _free(device, shards.ranks)
        total = sum(size.values())
        return cls(
            total,
            total - sum(of_blocks) + max(of_blocks, default=0),
            own + max(BUCKET, 2 * largest) + activations,
            free,
        )


def chosen(wanted: str | None, memories: Sequence[Memory], has_blocks: bool) -> str:
    """Which replica: the ``wanted`` one, or one that fits on every rank.

    Raises NotComparableError where none does.
    """

    def fits(kind: str) -> bool:
        return all(getattr(each, kind) + each.others <= each.free for each in memories)

    kinds = [each for each in ("full", "blocks") if has_blocks or each == "full"]
    kinds = [wanted] if wanted in kinds else kinds
    if (found := next(filter(fits, kinds), None)) is None:
        raise NotComparableError(
            f"{said(kinds[-1], memories)}: watch a smaller model, or one with shorter rows"
        )
    return found


def said(kind: str, memories: Sequence[Memory]) -> str:
    """What the rank with least memory needs, and what is free there."""
    needs = [getattr(each, kind) + each.others for each in memories]
    left = [each.free - need for each, need in zip(memories, needs, strict=True)]
    rank = left.index(min(left))
    least, need = memories[rank], needs[rank]
    where = f" on rank {rank}" if len(memories) > 1 else ""
    free = f"{least.free / 1e9:.2f} GB are free{where}"
    return f"the watch needs {need / 1e9:.2f} GB (replica='{kind}'), and {free}"


def _free(device: torch.device, ranks: LoopRanks) -> tuple[int, int]:
    """Of the device what is free for this rank, and the most that the loop had beside what it has now."""
    if device.type in ("cpu", "meta"):
        own = [each.host for each in ranks.members if each.rank == ranks.rank]
        beside = sum(each.host in own for each in ranks.members) or 1
        return min(psutil.virtual_memory().available, *_limits()) // beside, 0
    module = torch.get_device_module(device)
    allocated = module.memory_allocated(device)
    free = module.mem_get_info(device)[0] + module.memory_reserved(device) - allocated
    return free, module.max_memory_allocated(device) - allocated


def _limits() -> Iterator[int]:
    """What is left of the memory that the control groups of this process may have, of which a container is
    one; what they keep of files is free.
    """
    with suppress(OSError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, kind, path = line.split(":", 2)
            group = GROUPS / kind / path.lstrip("/")
            for each, (limit, used) in product((group, *group.parents), LIMITS):
                with suppress(OSError, ValueError):  # this one has none
                    left = int((each / limit).read_text()) - int((each / used).read_text())
                    numbers = (each / "memory.stat").read_text().replace("total_", "").split("\n")
                    stat = dict(number.split() for number in numbers if number)
                    yield left + int(stat["inactive_file"]) + int(stat["active_file"])
