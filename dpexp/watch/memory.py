"""Memory: what a watch needs beside the loop's own, whether that is free, and which replica fits.

of a rank                                               bytes
the replica, ``full``                                   all parameters, in the type of the forward
the replica, in ``blocks``                              the largest block, and what is outside of blocks
the sums of gradients, then the updated parameters      what it owns of them, in float32 or wider
a gradient on its way to the sums                       the largest parameter, twice, or a bucket
the activations of one call                             what the loop itself had at most, where that is known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import psutil
import torch
from torch import nn

from dpexp.config.errors import NotComparableError
from dpexp.watch.expected import BUCKET
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards

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
        wide = {
            name: torch.promote_types(each.dtype, torch.float32).itemsize for name, each in parameters.items()
        }
        own = sum(
            prod(shards.shape(name)) * each for name, each in wide.items() if parameters[name].requires_grad
        )
        largest = max((each.numel() * wide[name] for name, each in parameters.items()), default=0)
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

    kinds = [wanted] if wanted else ["full", *(["blocks"] if has_blocks else [])]
    if (found := next(filter(fits, kinds), None)) is None:
        raise NotComparableError(
            f"{said(kinds[-1], memories)}: watch a smaller model, or one with shorter rows"
        )
    return found


def said(kind: str, memories: Sequence[Memory]) -> str:
    """What the rank with least memory needs, and what is free there."""
    rank, least = min(enumerate(memories), key=lambda pair: pair[1].free - getattr(pair[1], kind))
    where = f" on rank {rank}" if len(memories) > 1 else ""
    need = getattr(least, kind) + least.others
    free = f"{least.free / 1e9:.2f} GB are free{where}"
    return f"the watch needs {need / 1e9:.2f} GB (replica='{kind}'), and {free}"


def _free(device: torch.device, ranks: LoopRanks) -> tuple[int, int]:
    """Of the device what is free for this rank, and the most that the loop had beside what it has now."""
    if device.type in ("cpu", "meta"):
        own = [each.host for each in ranks.members if each.rank == ranks.rank]
        beside = sum(each.host in own for each in ranks.members) or 1
        return psutil.virtual_memory().available // beside, 0
    module = torch.get_device_module(device)
    allocated = module.memory_allocated(device)
    free = module.mem_get_info(device)[0] + module.memory_reserved(device) - allocated
    return free, module.max_memory_allocated(device) - allocated
