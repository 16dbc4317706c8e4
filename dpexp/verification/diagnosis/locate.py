"""Locate: where a layout begins to differ from the single device, and what the difference looks like.

A failed step has kept the outputs of every module call and the gradients of both sides, so that nothing is
computed again but the gradients of the shards, once over the batch for each number of shards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from dpexp.data.batch import Batch
from dpexp.strategies.modules.wrappers import parts
from dpexp.verification.compare import Tensors, distance, distances, magnitude, relative_error
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.joined_calls import Key, joined_call
from dpexp.verification.recorder import Calls, computed, widened
from dpexp.verification.side_by_side import Failure, SideBySide

UNKNOWN = (2, 3, 4)
"""How many shards are tried, where a layout does not say how many it makes."""


class Locator:
    """Every rank must make one and call ``message``; all get the same text."""

    def __init__(self, sides: SideBySide, failure: Failure, model: nn.Module) -> None:
        self.sides, self.failure, self.model = sides, failure, model
        self.group, self.tolerance = sides.group, sides.tolerance
        self._pattern = ""

    def message(self) -> str:
        """One message: what differs in which step, the first module, the first parameter, and the pattern."""
        worst, rows = self.failure.worst, self.failure.batch.rows
        (tensor, *_) = self._of_worst_rank(worst.tensor)
        name = {"outputs": f"outputs{tensor}", "loss": "the loss"}.get(worst.kind, f"{worst.kind} ({tensor})")
        verb = "differs" if worst.kind == "loss" else "differ"
        when = "after " if worst.kind in ("parameters", "optimizer") else ""
        shown = f" ({rows} rows)" if worst.step == self.sides.steps else ""
        start = f"{when}step {worst.step}{shown}: {name} {verb} by {worst.error:.1e}"
        if worst.kind in ("buffers", "parameters", "optimizer"):
            return start + self._of_tensor(tensor)
        return "; ".join(filter(None, (start, self._of_modules(), self._of_parameters(), self._pattern)))

    def _of_worst_rank(self, value: str) -> list[str]:
        """The value of the rank with the largest error of the failed kind first."""
        kind = self.failure.worst.kind
        own = self.sides.worst.get(kind)
        by_rank = self.group.all_gather((own.error if own else 0.0, value))
        return [each for _, each in sorted(by_rank, key=lambda pair: -pair[0])]

    # --- buffers, parameters and the optimizer's state ---

    def _of_tensor(self, tensor: str) -> str:
        """What is wrong with a tensor after a step."""
        if self.failure.worst.kind == "optimizer":
            return ""
        is_buffer = self.failure.worst.kind == "buffers"
        found: Tensors = self.sides.layout.buffers() if is_buffer else self.sides.layout.full_parameters()
        before = dict(self.model.state_dict(keep_vars=True)) | dict(self.model.named_buffers())
        texts = []
        if tensor not in found:
            texts.append("it is missing in the layout")
        elif tensor in before and distance(found[tensor], before[tensor]) == 0:
            writer = (
                "it is stale, as it was before the first step" if is_buffer else "the optimizer left it out"
            )
            texts.append(writer)
        by_rank: list[list[str]] = self.group.all_gather(texts)
        return next((f": {text}" for text in chain.from_iterable(by_rank)), "")

    # --- outputs ---

    def _of_modules(self) -> str:
        """The first module in forward order whose output differs."""
        expected, counts = self.failure.expected, Counter[Key]()
        by_rank: list[Calls] = self.group.all_gather(self.failure.found.calls if self._has_rows() else {})
        together = self.group.mesh.ranks_by_dp_rank
        for key in expected.modules:
            wanted = expected.calls[key][-1][counts[key]]
            for found_key in self._levels(by_rank, key[0]):
                calls = len(expected.calls[key][-1])
                found = joined_call(by_rank, together, found_key, counts[key], calls, wanted)
                if found is not None and self._differs(found, wanted):
                    return self._describe_module(found_key, by_rank, found, wanted)
            counts[key] += 1
        return ""

    def _has_rows(self) -> bool:
        rows: slice = self.group.rows(self.failure.batch.rows)
        return bool(rows.stop > rows.start)

    @staticmethod
    def _levels(by_rank: Sequence[Calls], name: str) -> list[Key]:
        """The module itself, then the wrappers around it, from the innermost on."""
        return sorted({key for calls in by_rank for key in calls if key[0] == name}, key=lambda key: -key[1])

    def _differs(self, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
        error = relative_error(_numbered(found), _numbered(expected))
        return error > self.tolerance

    def _describe_module(
        self,
        key: Key,
        by_rank: Sequence[Calls],
        found: Sequence[torch.Tensor],
        wanted: Sequence[torch.Tensor],
    ) -> str:
        is_wrapper = key != self._levels(by_rank, key[0])[0]
        module = f"module '{key[0]}'" if key[0] else "the model itself"
        where = f"the wrapper around {module}, whose own output is right" if is_wrapper else module
        pair = next((f, w) for f, w in zip(found, wanted, strict=True) if self._differs([f], [w]))
        text = patterns.of_rows(widened(pair[0]), widened(pair[1]), self.group.size)
        return f"the first output in forward order that differs is of {where}" + (f": {text}" if text else "")

    # --- gradients ---

    def _of_parameters(self) -> str:
        """The first parameter in backward order whose gradient differs."""
        found, expected = self.failure.found.gradients, self.failure.expected.gradients
        if not expected:
            return ""
        norm = math.hypot(*map(magnitude, expected.values()))
        limit = self.tolerance * norm / math.sqrt(len(expected))
        apart: dict[str, float] = {}
        for of_rank in self.group.all_gather(distances(found, expected)):
            apart |= {name: max(value, apart.get(name, 0.0)) for name, value in of_rank.items()}
        order = [*dict.fromkeys(self.failure.expected.order), *sorted(apart)]
        names = list(dict.fromkeys(name for name in order if name in apart and not apart[name] <= limit))
        if not names:
            return ""
        first = names[0]
        size = magnitude(expected[first]) if first in expected else 0.0
        error = f" (by {apart[first] / size:.1e})" if size and math.isfinite(apart[first]) else ""
        if self.failure.worst.kind in ("gradients", "loss"):
            self._pattern = self._pattern_of_gradients(names, limit)
        return f"the first gradient in backward order that differs is of parameter '{first}'{error}"

    def _pattern_of_gradients(self, names: Sequence[str], limit: float) -> str:
        """What the gradients look like on each rank, in one text."""
        shapes: list[_Shape] = self.group.all_gather(self._shape(names, limit))
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
        found = self.group.all_gather(self.failure.found.gradients.get(name))
        expected = self.failure.expected.gradients.get(name)
        parts = [found[rank] for rank in self.group.mesh.ranks_by_dp_rank[0]]
        if expected is None or any(part is None or part.shape != expected.shape for part in parts):
            return False
        return distance(sum(parts[1:], parts[0]), expected) <= self.tolerance * magnitude(expected)

    def _shape(self, names: Sequence[str], limit: float) -> _Shape:
        """What the gradients of this rank look like: the first that fits, for all names or else the first."""
        found, expected = self.failure.found.gradients, self.failure.expected.gradients
        wrong = [name for name in names if not distance(found.get(name), expected.get(name)) <= limit]
        if not wrong:
            return _Shape(is_right=True)
        if wrong[0] not in found:
            return _Shape(is_missing=True)
        counts = self._shard_counts()
        for chosen in (wrong, wrong[:1]):
            usable = [name for name in chosen if name in expected and name in found]
            scale = patterns.factor(_vector(found, expected, usable), _vector(expected, expected, usable))
            if scale is not None:
                return _Shape(
                    scale=scale, shards=self._count(counts), unit="rank" if self.group.size > 1 else "shard"
                )
        return next((shape for count in counts if (shape := self._shares(wrong, count))), _Shape())

    def _shares(self, names: Sequence[str], count: int) -> _Shape | None:
        """The gradients as a sum of those of ``count`` shards."""
        found, expected = self.failure.found.gradients, self.failure.expected.gradients
        rows, weights, by_shard = self._gradients_of_shards(count)
        for chosen in (names, names[:1]):
            usable = [name for name in chosen if name in found and all(name in each for each in by_shard)]
            columns = [_vector(each, expected, usable) for each in by_shard]
            shares = patterns.coefficients(_vector(found, expected, usable), columns) if usable else None
            if shares is not None:
                unit = "rank" if self.group.dp_size > 1 else "shard"
                return _Shape(shares=shares, rows=rows, weights=weights, unit=unit)
        return None

    def _gradients_of_shards(self, count: int) -> tuple[list[int], list[float], list[Tensors]]:
        """The rows and the weight of each shard, and the single device's gradients of their loss."""
        reference, batch = self.sides.reference, self.failure.batch
        parts, gradients = list[Batch](), list[Tensors]()
        for piece in torch.arange(batch.rows).chunk(count):
            parts.append(batch.sliced(slice(int(piece[0]), int(piece[-1]) + 1)))
            reference.clear()
            gradients.append(computed(reference, parts[-1]).gradients)
        return [part.rows for part in parts], self.sides.objective.weights(parts), gradients

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

    def text(self) -> str:
        """In words."""
        if self.is_missing:
            return "the layout has no gradient for it"
        if self.scale is not None:
            return patterns.of_factor(self.scale, self.shards, self.unit)
        if not self.shares:
            return ""
        return patterns.of_coefficients(self.shares, self.rows, self.unit, self.weights)

    def is_own(self, rank: int) -> bool:
        """Whether it is a multiple of the gradient of this rank's rows."""
        counted = [shard for shard, share in enumerate(self.shares) if not patterns.is_close(share, 0)]
        return counted == [rank] or (rank >= len(self.rows) > 0 and not counted)


def _numbered(tensors: Sequence[torch.Tensor]) -> Tensors:
    return {str(index): tensor for index, tensor in enumerate(tensors)}


def _vector(tensors: Tensors, like: Tensors, names: Sequence[str]) -> torch.Tensor:
    """The tensors of these names as one vector; of sparse ones the rows that ``like`` has."""
    flat = []
    for name in names:
        tensor, rows = tensors[name], like[name]
        if rows.is_sparse:
            tensor = tensor.index_select(0, rows.coalesce().indices()[0])
        flat.append((tensor.to_dense() if tensor.is_sparse else tensor).flatten())
    return torch.cat(flat)
