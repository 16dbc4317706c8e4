"""Gradients: the first one in backward order that differs, and what those of each rank look like.

Nothing is computed again but the gradients of the shards, once over the batch for each number of shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.nn.parallel import DistributedDataParallel

from dpexp.config.words import listed
from dpexp.strategies.modules import parts
from dpexp.verification.compare import Difference, Tensors, magnitude, parts_of, worst
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.patterns import Found
from dpexp.verification.sides import Sides
from dpexp.verification.trial import Failure

UNKNOWN = (2, 3, 4)
"""How many shards are tried, where a layout does not say how many it makes."""
BESIDE = 1e-5
"""Smaller errors beside a large one are the rounding of a narrower type, in which a module computes."""

_Shape: TypeAlias = tuple[str, bool]
"""What the gradients of a rank look like, in words, and whether they are those of its own rows."""


class FirstGradient:
    """Every rank must make one and call ``find``."""

    def __init__(self, sides: Sides, failure: Failure) -> None:
        self.sides, self.failure, self.group, self.limits = sides, failure, sides.group, failure.limits
        self.found, self.expected = failure.found.gradients, failure.expected.gradients

    def find(self) -> Found:
        """The first parameter in backward order whose gradient differs, and what that looks like."""
        if not self.expected:
            return Found()
        apart: dict[str, Difference] = {}
        for of_rank in self.group.all_gather(self.group.together(self._judged)):
            apart |= {name: worst([each, apart.get(name, each)]) for name, each in of_rank.items()}
        wrong = {name: each.error for name, each in apart.items() if each.ratio > 1}
        least = BESIDE * min(1.0, max(wrong.values(), default=0.0))
        order = dict.fromkeys([*self.failure.expected.order, *sorted(wrong)])
        names = [name for name in order if wrong.get(name, -1) >= least]
        if not names:
            return Found()
        first = wrong[names[0]]
        error = f" (by {first:.1e})" if math.isfinite(first) else ""
        text = f"the first gradient in backward order that differs is of parameter '{names[0]}'{error}"
        pattern = self._pattern(names) if self.failure.worst.kind in ("gradients", "loss") else ""
        return Found("; ".join(filter(None, (text, pattern))), names[0].rpartition(".")[0])

    def _judged(self) -> dict[str, Difference]:
        """The error of each gradient of this rank."""
        return self.limits.judge("gradients", self.failure.worst.step, parts_of(self.found, self.expected))

    def _pattern(self, names: Sequence[str]) -> str:
        """What the gradients look like on each rank, in one text."""
        shapes = self.group.all_gather(self.group.together(lambda: self._shape(names)))
        if self.group.dp_size > 1 and all(is_own for _, is_own in self.group.one_of_each_dp_rank(shapes)):
            why = self._of_ddp(names)
            return f"each rank has the gradient of its own rows: the sum over ranks is missing{why}"
        ranks_by_dp_rank = self.group.mesh.ranks_by_dp_rank
        if self.group.size > self.group.dp_size and self._adds_up(names[0], ranks_by_dp_rank[0], 1):
            return "each rank has a part of it: the sum over the ranks that share rows is missing"
        texts = [text for text, _ in shapes]
        ranks = [of_rows[0] for of_rows in ranks_by_dp_rank]
        if not any(texts) and len(ranks) > 1 and self._adds_up(names[0], ranks, len(ranks)):
            return f"the ranks have different gradients, whose mean is right: {self._unsynchronized(names)}"
        if len(set(texts)) == 1:
            return texts[0]
        return "; ".join(f"on rank {rank} {text}" for rank, text in enumerate(texts) if text)

    def _unsynchronized(self, names: Sequence[str]) -> str:
        optimizers = self.sides.layout.optimizers
        if optimizers is not None and optimizers.accumulate > 1:
            return "they are not synchronized in the last batch of the window: is no_sync() left on?"
        return f"they are not synchronized{self._of_ddp(names)}"

    def _of_ddp(self, wrong: Sequence[str]) -> str:
        """Why DistributedDataParallel, where it is in the layout, has not summed these gradients."""
        layout = self.sides.layout
        if not any(isinstance(part, DistributedDataParallel) for part in layout.placed.module.modules()):
            return ""
        unused = {n for n, each in layout.parameters().items() if each.requires_grad} - self.found.keys()
        if unused:
            return (
                f". DistributedDataParallel waits for the gradient of {listed(sorted(unused))}, which gets "
                "none: freeze it, or give find_unused_parameters=True"
            )
        right = [name for name in self.found if name not in wrong and name in self.expected]
        if any(magnitude(self.expected[name]) > 0 for name in right):
            return ". DistributedDataParallel was told to ignore it, or it came after the model was wrapped"
        return (
            ". The hooks of DistributedDataParallel have not run: the model was cast or moved after it was "
            "wrapped, no_sync is on, or the wrapper's forward is not called"
        )

    def _adds_up(self, name: str, ranks: Sequence[int], divisor: int) -> bool:
        """Whether the sum of the gradients of these ranks, which differ, is so many times the right one."""
        found, expected = self.group.all_gather(self.found.get(name)), self.expected.get(name)
        terms = [term for rank in ranks if (term := found[rank]) is not None]
        if expected is None or [term.shape for term in terms] != [expected.shape] * len(ranks):
            return False
        if all(torch.equal(term, terms[0]) for term in terms):  # these have been summed
            return False
        together = parts_of({name: sum(terms[1:], terms[0]) / divisor}, {name: expected})
        return self.limits.judge("gradients", self.failure.worst.step, together)[name].ratio <= 1

    def _shape(self, names: Sequence[str]) -> _Shape:
        """What the gradients of this rank look like: the first that fits, for all names or else the first."""
        judged = self._judged()
        wrong = [name for name in names if name in judged and judged[name].ratio > 1]
        if not wrong:
            return "", False
        if wrong[0] not in self.found:
            return "the layout has no gradient for it", False
        if wrong[0] not in self.expected:
            return (
                "a single device has no gradient for it: the layout trains what is frozen or not used",
                False,
            )
        pieces = max((part.pieces for part in parts(self.sides.layout.placed.module)), default=1)
        known = self.group.dp_size if self.group.dp_size > 1 else pieces
        for chosen in (wrong, wrong[:1]):
            usable = [name for name in chosen if name in self.expected and name in self.found]
            scale = patterns.factor(*self._vectors(usable, self.found, self.expected)) if usable else None
            if scale is not None:
                count = known if known > 1 else self.group.size
                return patterns.of_factor(scale, count, "rank" if self.group.size > 1 else "shard"), False
        found, expected = self._vectors(wrong[:1], self.found, self.expected)
        if (text := patterns.of_type(found)) and not patterns.of_type(expected):
            return text, False
        if self.failure.mode.chunks is not None:  # which shards of shards may not fill
            return "", False
        counts = (known,) if known > 1 else UNKNOWN
        return next((shape for count in counts if (shape := self._of_shards(wrong, count))), ("", False))

    def _of_shards(self, names: Sequence[str], count: int) -> _Shape | None:
        """The gradients beside those of ``count`` shards."""
        batch, mode, state = self.failure.batch, self.failure.mode, self.failure.state
        if state is None:
            return None
        pieces = torch.arange(batch.rows).chunk(count)
        shards = [batch.sliced(slice(int(piece[0]), int(piece[-1]) + 1)) for piece in pieces]
        rows, weights = [shard.rows for shard in shards], state.objective.weights(shards)
        before, single = state.without_gradients(), self.sides.single
        by_shard = [single.step(before, shard, mode).gradients for shard in shards]
        unit = "rank" if self.group.dp_size > 1 else "shard"
        for chosen in (names, names[:1]):
            usable = [name for name in chosen if all(name in each for each in (self.found, *by_shard))]
            if usable:
                found, *columns = self._vectors(usable, self.found, *by_shard)
                text, alone = patterns.of_shards(found, columns, rows, weights, unit)
                if text:
                    return text, alone == self.group.dp_rank
        return None

    def _vectors(self, names: Sequence[str], *sides: Tensors) -> list[torch.Tensor]:
        """The gradients of these names as one vector for each side; of sparse ones the rows expected."""
        return [torch.cat([_dense(side[name], self.expected[name]) for name in names]) for side in sides]


def _dense(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.is_sparse:
        tensor = tensor.index_select(0, like.coalesce().indices()[0])
    return (tensor.to_dense() if tensor.is_sparse else tensor).flatten()
