"""Batch: the rows that are computed together, all of a global batch or those of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpexp import tensors

RankRows = Callable[[int], slice]
"""From the number of rows of a global batch to the rows that a rank computes."""

STAND_IN_ROWS = 2
"""A rank without rows computes the first rows of the batch with weight 0, because the other ranks wait for it
in collective operations. It computes two rows, because BatchNorm refuses a batch of one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, or the part of its rows that a rank computes.

    ``inputs`` are the model's positional arguments. Every tensor has ``rows`` rows in dimension 0. Where
    ``rows`` is 0, the tensors hold ``STAND_IN_ROWS`` rows, which must not count.
    """

    inputs: tuple[Any, ...]
    targets: Any
    rows: int
    global_rows: int
    share: float | None = None

    @property
    def weight(self) -> float:
        """The weight in the loss of the global batch: ``share``, or else the fraction of its rows."""
        return self.rows / self.global_rows if self.share is None else self.share

    def part(self, rank_rows: RankRows) -> Batch:
        """The part of this global batch that a rank computes."""
        rows, fetched = local_rows(rank_rows, self.rows)
        inputs, targets = tensors.map_tensors(lambda tensor: tensor[fetched], (self.inputs, self.targets))
        return Batch(inputs, targets, rows, self.rows)

    def sliced(self, rows: slice) -> Batch:
        """These rows of the global batch."""
        return self.part(lambda _: rows)


def local_rows(rank_rows: RankRows, global_rows: int) -> tuple[int, slice]:
    """How many rows of a global batch a rank computes, and the rows to fetch: these or a stand-in."""
    local = rank_rows(global_rows)
    rows = local.stop - local.start
    return rows, local if rows else slice(0, min(global_rows, STAND_IN_ROWS))
