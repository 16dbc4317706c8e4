"""Shards: what of each parameter a rank owns: all of it, or the box of a DTensor that its shard is.

    full  (6, 4)    rank 0: rows 0 to 2    rank 1: rows 3 to 5

What is found, expected, sampled and updated of a parameter is compared as these own numbers, and what is
counted of them is added over the ranks that have other ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dpexp.config.errors import NotComparableError
from dpexp.watch.calls import full
from dpexp.watch.ranks import LoopRanks

SAMPLE = 2048
"""So many numbers of each parameter are read at most."""
_T = TypeVar("_T")
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a shard begins in the full tensor, and its shape."""


def own(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """The numbers of a tensor of any shape that are on this rank, detached: a view, if that is possible.

    With ``like`` those that a DTensor has which is placed so: every rank must call this.
    """
    found: Any = tensor.detach()
    if not hasattr(found, "placements"):
        return found  # type: ignore[no-any-return]
    wanted: Any = getattr(like, "placements", found.placements)
    if found.placements != wanted:
        found = found.redistribute(placements=wanted)
    local = found.to_local()
    return local.wait() if hasattr(local, "trigger_wait") else local  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Shards:
    """The ``shapes`` of the full parameters by name, and the ``boxes`` of each rank.

    A parameter that is no DTensor has no box.
    """

    shapes: Mapping[str, tuple[int, ...]]
    boxes: Sequence[Mapping[str, Box]]
    ranks: LoopRanks

    @classmethod
    def of(cls, parameters: Mapping[str, nn.Parameter], ranks: LoopRanks) -> Shards:
        """Those of the model as it is laid out. Every rank must call this.

        Raises NotComparableError for ranks that have other models.
        """
        shapes = {name: tuple(each.shape) for name, each in parameters.items()}
        boxes = {name: _box(each) for name, each in parameters.items() if hasattr(each, "placements")}
        by_rank = ranks.all_gather((shapes, boxes))
        if any(each != shapes or of_rank.keys() != boxes.keys() for each, of_rank in by_rank):
            raise NotComparableError(
                "ranks have other models, as the stages of a pipeline: these are not compared"
            )
        return cls(shapes, [of_rank for _, of_rank in by_rank], ranks)

    @property
    def rank(self) -> int:
        """This one."""
        return self.ranks.rank

    def is_sharded(self, name: str) -> bool:
        """Whether it is a DTensor."""
        return name in self.boxes[self.rank]

    def shape(self, name: str) -> tuple[int, ...]:
        """That of what this rank owns."""
        return self.boxes[self.rank][name][1] if self.is_sharded(name) else self.shapes[name]

    def rows(self, name: str) -> range:
        """Those of the full tensor of which this rank owns something; a scalar has one."""
        if not self.is_sharded(name) or not self.shapes[name]:
            return range(next(iter(self.shapes[name]), 1))
        (start, *_), (count, *_) = self.boxes[self.rank][name]
        return range(start, start + count)

    def cut(self, name: str, tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
        """What this rank owns of the full tensor, or of rows of it with ``first=1``: a view."""
        if self.is_sharded(name):
            box = [*zip(*self.boxes[self.rank][name], strict=True)]
            for dimension, (start, length) in enumerate(box[first:], first):
                tensor = tensor.narrow(dimension, start, length)
        return tensor

    def gathered(self, name: str, tensor: torch.Tensor, like: Any) -> torch.Tensor:
        """The full tensor, of which this rank has that and others theirs, placed as ``like``.

        Every rank must call this.
        """
        if not self.is_sharded(name):
            return tensor
        return full(
            DTensor.from_local(
                tensor, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
            )
        )

    def is_shared(self, name: str) -> bool:
        """Whether another rank has the same numbers of it."""
        return sum(of_rank.get(name) == self.boxes[self.rank].get(name) for of_rank in self.boxes) > 1

    def owners(self, name: str) -> list[int]:
        """The first ranks that have other numbers each; of what is not sharded this rank."""
        boxes = [of_rank.get(name) for of_rank in self.boxes]
        first = [rank for rank, box in enumerate(boxes) if box not in boxes[:rank]]
        return first if self.is_sharded(name) else [self.rank]

    def summed(self, of_own: Mapping[str, _T]) -> dict[str, _T]:
        """What was counted of own numbers by name, added over the ranks that have other numbers.

        Of what is not sharded it is this rank's. Every rank must call this.
        """
        sharded = {name: each for name, each in of_own.items() if self.is_sharded(name)}
        if not self.boxes[self.rank]:
            return dict(of_own)
        by_rank = self.ranks.all_gather(sharded)
        return dict(of_own) | {
            name: reduce(add, [by_rank[rank][name] for rank in self.owners(name) if name in by_rank[rank]])
            for name in sharded
        }


def sampled(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Some numbers of a tensor of any shape, as a vector on the host, in float32 or wider.

    With ``like``, a DTensor, the tensor is a shard of it: the vector is that of all of it, with zeros for
    the numbers of others.
    """
    kind = torch.promote_types(tensor.dtype, torch.float32)
    if like is None or not hasattr(like, "placements") or not like.dim():
        return tensor.detach().reshape(-1)[:: stride(tensor.numel())].to("cpu", kind, copy=True)
    numbers = np.arange(0, like.numel(), stride(like.numel()))
    pairs = zip(np.unravel_index(numbers, tuple(like.shape)), *_box(like), strict=True)
    at = np.stack([place - start for place, start, _ in pairs])
    is_own = np.all((at >= 0) & (at < np.array(tensor.shape)[:, None]), axis=0)
    found = torch.zeros(len(numbers), dtype=kind)
    own_ones = tensor.detach()[tuple(torch.from_numpy(each).to(tensor.device) for each in at[:, is_own])]
    found[torch.from_numpy(is_own.nonzero()[0])] = own_ones.to("cpu", kind)
    return found


def stride(count: int) -> int:
    """Every which number is in the sample of so many."""
    return max(1, count // SAMPLE)


def _box(parameter: Any) -> Box:
    """Raises NotComparableError for a DTensor whose shard is not one box of it."""
    chunks = parameter.__create_chunk_list__()
    shape = tuple(own(parameter).shape)
    if len(chunks) != 1 or tuple(chunks[0].sizes) != shape:
        raise NotComparableError(
            f"a parameter of shape {tuple(parameter.shape)} is placed as {parameter.placements}, of which "
            "no rank has a part without gaps: these are not compared"
        )
    return tuple(chunks[0].offsets), shape
