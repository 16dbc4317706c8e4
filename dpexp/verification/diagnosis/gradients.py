"""Gradients: the first one in backward order that differs, and what those of each rank look like.

Nothing is computed again but the gradients of the shards, once over the batch for each number of shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpexp.data.batch import Batch
from dpexp.strategies.modules.wrappers import parts
from dpexp.verification.compare import Difference, Tensors, parts_of, worst
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.agreement import Agreement
from dpexp.verification.take import Failure, Take

UNKNOWN = (2, 3, 4)
"""How many shards are tried, where a layout does not say how many it makes."""


BESIDE = 1e-5
"""Smaller errors beside a large one are the rounding of a narrower type, in which a module computes."""


class FirstGradient:
    """Every rank must make one and call ``text``, which also finds the ``pattern``."""

    def __init__(self, sides: Take, failure: Failure, ranks: Agreement) -> None:
        self.sides, self.failure, self.group, self.limits = sides, failure, sides.group, sides.judge.limits
        self._ranks, self.pattern = ranks, ""

    def text(self) -> str:
        """The first parameter in backward order whose gradient differs."""
        if not self.failure.expected.gradients:
            return ""
        apart: dict[str, Difference] = {}
        for of_rank in self._ranks.all_gather(self._judged()):
            apart |= {name: worst([each, apart.get(name, each)]) for name, each in of_rank.items()}
        order = [*dict.fromkeys(self.failure.expected.order), *sorted(apart)]
        wrong = {name for name, each in apart.items() if each.ratio > 1}
        least = BESIDE * min(1.0, max((apart[name].error for name in wrong), default=0.0))
        names = list(dict.fromkeys(name for name in order if name in wrong and apart[name].error >= least))
        if not names:
            return ""
        first = apart[names[0]].error
        error = f" (by {first:.1e})" if math.isfinite(first) else ""
        if self.failure.worst.kind in ("gradients", "loss"):
            self.pattern = self._pattern_of_gradients(names)
        return f"the first gradient in backward order that differs is of parameter '{names[0]}'{error}"

    def _judged(self) -> dict[str, Difference]:
        """The error of each gradient of this rank."""
        parts = parts_of(self.failure.found.gradients, self.failure.expected.gradients)
        return self.limits.judge("gradients", self.sides.steps, parts)

    def _pattern_of_gradients(self, names: Sequence[str]) -> str:
        """What the gradients look like on each rank, in one text."""
        shapes: list[_Shape] = self._ranks.all_gather(self._shape(names))
        by_dp_rank = self.group.one_of_each_dp_rank(shapes)
        if self.group.dp_size > 1 and all(shape.is_own(dp_rank) for dp_rank, shape in enumerate(by_dp_rank)):
            return "each rank has the gradient of its own rows: the sum over ranks is missing"
        if self._is_part(names[0]):
            return "each rank has a part of it: the sum over the ranks that share rows is missing"
        texts = [shape.text() for shape in shapes]
        if len(set(texts)) == 1:
            return texts[0]
        return "; ".join(f"on rank {rank} {text}" for rank, text in enumerate(texts) if text)

    def _is_part(self, name: str) -> bool:
        """Whether the gradients of ranks that compute the same rows add up to the right one."""
        if self.group.size == self.group.dp_size:
            return False
        found = self._ranks.all_gather(self.failure.found.gradients.get(name))
        expected = self.failure.expected.gradients.get(name)
        parts = [found[rank] for rank in self.group.mesh.ranks_by_dp_rank[0]]
        if expected is None or any(part is None or part.shape != expected.shape for part in parts):
            return False
        together = parts_of({name: sum(parts[1:], parts[0])}, {name: expected})
        return self.limits.judge("gradients", self.sides.steps, together)[name].ratio <= 1

    def _shape(self, names: Sequence[str]) -> _Shape:
        """What the gradients of this rank look like: the first that fits, for all names or else the first."""
        found, expected = self.failure.found.gradients, self.failure.expected.gradients
        judged = self._judged()
        wrong = [name for name in names if name in judged and judged[name].ratio > 1]
        if not wrong:
            return _Shape(is_right=True)
        if wrong[0] not in found:
            return _Shape(is_missing=True)
        counts = self._shard_counts()
        in_chunks = self.sides.single.mode.in_chunks
        for chosen in (wrong, wrong[:1]):
            usable = [name for name in chosen if name in expected and name in found]
            scale = patterns.factor(_vector(found, expected, usable), _vector(expected, expected, usable))
            if scale is not None:
                return _Shape(
                    scale=scale, shards=self._count(counts), unit="rank" if self.group.size > 1 else "shard"
                )
        if in_chunks:  # which shards of shards may not fill
            return _Shape()
        return next((shape for count in counts if (shape := self._shares(wrong, count))), _Shape())

    def _shares(self, names: Sequence[str], count: int) -> _Shape | None:
        """The gradients as a sum of those of ``count`` shards."""
        found, expected = self.failure.found.gradients, self.failure.expected.gradients
        rows, weights, by_shard = self._gradients_of_shards(count)
        for chosen in (names, names[:1]):
            usable = [name for name in chosen if name in found and all(name in each for each in by_shard)]
            columns = [_vector(each, expected, usable) for each in by_shard]
            if not usable:
                continue
            pair = _vector(found, expected, usable), _vector(expected, expected, usable)
            are_known = len(self._shard_counts()) == 1
            shares = patterns.coefficients(*pair, columns, 1 if are_known else count)
            if shares is not None:
                unit = "rank" if self.group.dp_size > 1 else "shard"
                return _Shape(shares=shares, rows=rows, weights=weights, unit=unit, are_known=are_known)
        return None

    def _gradients_of_shards(self, count: int) -> tuple[list[int], list[float], list[Tensors]]:
        """The rows and the weight of each shard, and the single device's gradients of their loss."""
        batch, parts = self.failure.batch, list[Batch]()
        for piece in torch.arange(batch.rows).chunk(count):
            parts.append(batch.sliced(slice(int(piece[0]), int(piece[-1]) + 1)))
        gradients = [self.sides.single.gradients(part) for part in parts]
        return [part.rows for part in parts], self.sides.single.objective.weights(parts), gradients

    def _shard_counts(self) -> Sequence[int]:
        """Into how many shards the layout splits a batch: one number where it says so."""
        pieces = max((part.pieces for part in parts(self.sides.layout.placed.module)), default=1)
        known = self.group.dp_size if self.group.dp_size > 1 else pieces
        return (known,) if known > 1 else UNKNOWN

    def _count(self, shards: Sequence[int]) -> int:
        """The number that a factor may be: of the shards where it is known, or else of the ranks."""
        return shards[0] if len(shards) == 1 else self.group.size


@dataclass(frozen=True)
class _Shape:
    """What the gradients of a rank look like; without any field like nothing known."""

    is_right: bool = False
    is_missing: bool = False
    scale: float | None = None
    shards: int = 1
    shares: Sequence[float] = ()
    rows: Sequence[int] = ()
    unit: str = "shard"
    weights: Sequence[float] = ()
    are_known: bool = True

    def text(self) -> str:
        """In words."""
        if self.is_missing:
            return "the layout has no gradient for it"
        if self.scale is not None:
            return patterns.of_factor(self.scale, self.shards, self.unit)
        if not self.shares:
            return ""
        return patterns.of_coefficients(
            self.shares, self.rows, self.unit, self.weights, are_known=self.are_known
        )

    def is_own(self, rank: int) -> bool:
        """Whether it is a multiple of the gradient of this rank's rows."""
        counted = [shard for shard, share in enumerate(self.shares) if not patterns.is_close(share, 0)]
        return counted == [rank] or (rank >= len(self.rows) > 0 and not counted)


def _vector(tensors: Tensors, like: Tensors, names: Sequence[str]) -> torch.Tensor:
    """The tensors of these names as one vector; of sparse ones the rows that ``like`` has."""
    flat = []
    for name in names:
        tensor, rows = tensors[name], like[name]
        if rows.is_sparse:
            tensor = tensor.index_select(0, rows.coalesce().indices()[0])
        flat.append((tensor.to_dense() if tensor.is_sparse else tensor).flatten())
    return torch.cat(flat)
