"""Mesh: names and sizes of the dimensions along which the ranks of a run are laid out.

--mesh dp=2,tp=2      rank   0  1  2  3      the last dimension varies fastest, as in init_device_mesh
                      dp     0  0  1  1      its ranks split the rows of a batch
                      tp     0  1  0  1      its ranks split parameters, and compute the same rows
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from functools import cached_property

from dpexp.config.errors import ConfigError
from dpexp.config.words import shown

_SIZE = re.compile(r"[1-9]\d{0,3}", re.ASCII)


@dataclass(frozen=True)
class Dimension:
    """One dimension of a mesh, and how many ranks are along it."""

    name: str
    size: int

    @property
    def splits_rows(self) -> bool:
        """Whether the ranks along it split the rows of a batch; along any other they compute the same."""
        return self.name.startswith("dp")


@dataclass(frozen=True)
class Mesh:
    """The dimensions, and the ranks in the order of their coordinates; without ``ranks`` these are 0, 1, 2, …

    Ranks with the same ``dp_rank`` compute the same rows.
    """

    dimensions: tuple[Dimension, ...]
    ranks: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """The mesh of ``--mesh``. Raises ConfigError."""
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = map(str.strip, part.partition("="))
            if not name.isidentifier() or not _SIZE.fullmatch(size) or name in sizes:
                raise ConfigError(
                    f"--mesh {shown(text)}: {shown(part)} is not a new NAME=SIZE; write "
                    "NAME=SIZE,... as dp=2,tp=2"
                )
            sizes[name] = int(size)
        return cls(tuple(Dimension(name, size) for name, size in sizes.items()))

    @classmethod
    def of_rows(cls, size: int) -> Mesh:
        """The mesh of so many ranks that all split the rows."""
        return cls((Dimension("dp", size),))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(dimension.size for dimension in self.dimensions)

    @cached_property
    def ranks_by_dp_rank(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that compute each part of a batch, in ascending order."""
        together: dict[tuple[int, ...], list[int]] = {}
        places = itertools.product(*(range(dimension.size) for dimension in self.dimensions))
        for rank, place in zip(self.ranks or range(self.size), places, strict=True):
            part = tuple(
                at for at, dimension in zip(place, self.dimensions, strict=True) if dimension.splits_rows
            )
            together.setdefault(part, []).append(rank)
        return tuple(tuple(sorted(ranks)) for ranks in together.values())

    @property
    def dp_size(self) -> int:
        """The number of parts into which the ranks split the rows of a batch."""
        return math.prod(dimension.size for dimension in self.dimensions if dimension.splits_rows)

    def dp_rank(self, rank: int) -> int:
        """Which of these parts a rank computes."""
        return next(part for part, ranks in enumerate(self.ranks_by_dp_rank) if rank in ranks)
