"""Locate: where a layout begins to differ from the single device, and what the difference looks like.

A failed step has kept the outputs of every module call and the gradients of both sides, so that nothing is
computed again but the gradients of the shards, once over the batch for each number of shards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import torch
from torch import nn

from dpexp.data.batch import Batch
from dpexp.strategies.modules.wrappers import parts
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.agreement import Agreement
from dpexp.verification.diagnosis.full_calls import full_calls
from dpexp.verification.diagnosis.joined_calls import Key, joined_call, joined_chunks
from dpexp.verification.limits.compare import (
    Difference,
    Tensors,
    distance,
    parts_of,
    relative_error,
    whole_error,
    worst,
)
from dpexp.verification.modes.chunks import Chunked
from dpexp.verification.steps.recorder import Calls, computed, widened
from dpexp.verification.steps.side_by_side import Failure, Report, SideBySide, no_report

Outputs: TypeAlias = Sequence[torch.Tensor]
Error: TypeAlias = Callable[[torch.Tensor, torch.Tensor], float]

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""

UNKNOWN = (2, 3, 4)
"""How many shards are tried, where a layout does not say how many it makes."""


class Locator:
    """Every rank must make one and call ``message``; all get the same text."""

    def __init__(
        self, sides: SideBySide, failure: Failure, model: nn.Module, report: Report = no_report
    ) -> None:
        self.sides, self.failure, self.model, self._report = sides, failure, model, report
        self.group, self.limits = sides.group, sides.limits
        self._ranks = Agreement(sides.group)
        self._pattern = ""

    def message(self) -> str:
        """One message: what differs in which step, the first module, the first parameter, and the pattern.

        The difference is reported first. An error while it is located is a part of the message.
        """
        failed, start = self.failure.worst, self._difference()
        self._report(failed, start)
        if failed.kind in ("buffers", *OF_OPTIMIZER):
            return ": ".join(filter(None, (start, self._ranks.text_of("the reason", self._of_tensor))))
        located = (
            self._ranks.text_of("the first module", self._of_modules),
            self._ranks.text_of("the first parameter", self._of_parameters),
        )
        return "; ".join(filter(None, (start, *located, self._pattern)))

    def _difference(self) -> str:
        """What differs in which step."""
        failed, rows = self.failure.worst, self.failure.batch.rows
        name = {"outputs": f"outputs{failed.tensor}", "loss": "the loss"}.get(failed.kind)
        name = name or f"{failed.kind} ({failed.tensor})"
        verb = "differs" if failed.kind == "loss" else "differ"
        when = "after " if failed.kind in OF_OPTIMIZER else ""
        made = self.sides.made.get(failed.step, "")
        counted = f"{rows} {'row' if rows == 1 else 'rows'}"
        shown = f" ({f'{counted}: {made}' if made else counted})" if failed.step == self.sides.steps else ""
        return f"{when}step {failed.step}{shown}: {name} {verb} by {failed.error:.1e}"

    # --- buffers, parameters and the optimizer's state ---

    def _of_tensor(self) -> str:
        """What is wrong with a tensor after a step."""
        tensor = self.failure.worst.tensor
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
        by_rank: list[list[str]] = self._ranks.all_gather(texts)
        return next(chain.from_iterable(by_rank), "")

    # --- outputs ---

    def _of_modules(self) -> str:
        """The first module in forward order whose output differs: as a whole, or else in a part."""
        full = full_calls(self.failure.found.calls, self._ranks)
        by_rank: list[Calls] = self._ranks.all_gather(full if self._has_rows() else {})
        for error in (whole_error, _error_of_parts):
            for key, found, wanted in self._outputs(by_rank):
                if any(error(*pair) > self.limits.tolerance for pair in zip(found, wanted, strict=True)):
                    return self._describe_module(key, by_rank, found, wanted, error)
        return ""

    def _outputs(self, by_rank: Sequence[Calls]) -> Iterator[tuple[Key, Outputs, Outputs]]:
        """The outputs of each call that both sides have made, in forward order: found and expected."""
        expected, counts = self.failure.expected, Counter[Key]()
        together = self.group.mesh.ranks_by_dp_rank
        for key in expected.modules:
            of_chunks = [calls for _, calls in sorted(expected.calls[key].items())]
            calls = min(map(len, of_chunks))
            if counts[key] >= calls:
                continue  # of another chunk
            wanted = joined_chunks([each[counts[key]] for each in of_chunks])
            for found_key in self._levels(by_rank, key[0]):
                found = joined_call(by_rank, together, found_key, counts[key], calls, wanted)
                if found is not None and len(found) == len(wanted):
                    yield found_key, found, wanted
            counts[key] += 1

    def _has_rows(self) -> bool:
        rows: slice = self.group.rows(self.failure.batch.rows)
        return bool(rows.stop > rows.start)

    @staticmethod
    def _levels(by_rank: Sequence[Calls], name: str) -> list[Key]:
        """The module itself, then the wrappers around it, from the innermost on."""
        return sorted({key for calls in by_rank for key in calls if key[0] == name}, key=lambda key: -key[1])

    def _describe_module(
        self, key: Key, by_rank: Sequence[Calls], found: Outputs, wanted: Outputs, error: Error
    ) -> str:
        is_wrapper = key != self._levels(by_rank, key[0])[0]
        module = f"module '{key[0]}'" if key[0] else "the model itself"
        where = f"the wrapper around {module}, whose own output is right" if is_wrapper else module
        pairs = zip(found, wanted, strict=True)
        pair = next((f, w) for f, w in pairs if error(f, w) > self.limits.tolerance)
        text = patterns.of_rows(_wide(pair[0]), _wide(pair[1]), self.group.size)
        return f"the first output in forward order that differs is of {where}" + (f": {text}" if text else "")

    # --- gradients ---

    def _of_parameters(self) -> str:
        """The first parameter in backward order whose gradient differs."""
        if not self.failure.expected.gradients:
            return ""
        apart: dict[str, Difference] = {}
        for of_rank in self._ranks.all_gather(self._judged()):
            apart |= {name: worst([each, apart.get(name, each)]) for name, each in of_rank.items()}
        order = [*dict.fromkeys(self.failure.expected.order), *sorted(apart)]
        names = list(dict.fromkeys(name for name in order if name in apart and apart[name].ratio > 1))
        if not names:
            return ""
        first = apart[names[0]].error
        error = f" (by {first:.1e})" if math.isfinite(first) else ""
        if self.failure.worst.kind in ("gradients", "loss"):
            self._pattern = self._pattern_of_gradients(names)
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
        in_chunks = isinstance(self.sides.reference.placed.module, Chunked)
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


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    wide = widened(tensor)
    return wide if wide.is_floating_point() or wide.is_complex() else wide.double()


def _error_of_parts(found: torch.Tensor, expected: torch.Tensor) -> float:
    return relative_error({"": found}, {"": expected})


def _vector(tensors: Tensors, like: Tensors, names: Sequence[str]) -> torch.Tensor:
    """The tensors of these names as one vector; of sparse ones the rows that ``like`` has."""
    flat = []
    for name in names:
        tensor, rows = tensors[name], like[name]
        if rows.is_sparse:
            tensor = tensor.index_select(0, rows.coalesce().indices()[0])
        flat.append((tensor.to_dense() if tensor.is_sparse else tensor).flatten())
    return torch.cat(flat)
