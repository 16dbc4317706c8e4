"""Expected: what was seen of a step, and what a single device computes that takes all calls of all ranks, one
after the other.

    a call of each rank   forward            its outputs are compared, and forgotten
                          backward           a gradient that is complete goes to the sums, and is forgotten
    the next call …

Of the sums a rank has its own numbers. Those of a DTensor are added over the ranks at once, a few parameters
at a time, others when all calls are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.verification.compare import Limits, Parts, parts
from dpexp.watch.calls import Window, full
from dpexp.watch.clipping import Clip
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Narrowest, Replay
from dpexp.watch.shards import Shards, sampled
from dpexp.watch.weights import Weighed

Tensors = Mapping[str, torch.Tensor]
BUCKET = 1 << 24
"""So many bytes of gradients are added over the ranks together, or one that is larger."""


@dataclass(frozen=True)
class Observed:
    """What was seen of a step before an optimizer steps.

    ``residue`` are the gradients that the steps before have left, ``unclipped`` those before they were
    clipped: both ``sampled``. ``carried`` are calls since the optimizer's last step that a step of another
    one has closed. ``scale`` is GradScaler's, ``passes`` how often backward was called. ``is_edited``: after
    the last pass the loop has written to gradients by code of its own. ``is_by_grad``: they come from
    autograd.grad. ``hook`` is that of DDP's communication. ``written`` are ids of the parameters that the
    model as written had.
    """

    window: Window
    passes: int
    clips: Sequence[Clip]
    residue: Tensors
    unclipped: Tensors | None
    carried: Window
    is_scaled: bool
    scale: float
    is_edited: bool
    is_by_grad: bool
    hook: str
    written: frozenset[int]


@dataclass(frozen=True)
class Expected:
    """What a single device computes. ``sums`` are the gradients before clipping: of them what this rank owns.

    ``columns`` are what each backward pass of this rank adds to all of a parameter: ``sampled``. ``outputs``
    compare its calls, with what these leave in attributes. ``limits`` are those of the narrowest type in a
    forward.
    """

    sums: Tensors = field(default_factory=dict)
    columns: Sequence[Tensors] = ()
    outputs: Mapping[str, Parts] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(0.0))


@dataclass(frozen=True)
class Step:
    """One step of the loop beside ``expected``. ``counted``: for each rank the one that counts for it."""

    number: int
    window: Window
    shards: Shards
    counted: Sequence[int]
    weighed: Weighed
    expected: Expected = field(default_factory=Expected)
    loss: float = math.nan
    samples: int = 0

    @property
    def sums(self) -> Tensors:
        """Those of ``expected``."""
        return self.expected.sums

    def without(self, held: Container[str]) -> Step:
        """It, without the sums of these parameters."""
        left = {name: each for name, each in self.sums.items() if name not in held}
        return replace(self, expected=replace(self.expected, sums=left))

    def over(self) -> Step:
        """It, without what no optimizer needs any more."""
        return replace(self, window=Window(), expected=Expected())


class OneByOne(Mapping[str, torch.Tensor]):
    """Tensors by name, each of which is computed whenever it is asked for."""

    def __init__(self, names: Sequence[str], compute: Callable[[str], torch.Tensor]) -> None:
        self._names, self._compute = dict.fromkeys(names), compute

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def expected(
    step: Step, replay: Replay, *, draw: int | None = None, names: frozenset[str] | None = None
) -> Expected:
    """Take the calls of this rank, while other ranks take theirs; every rank must call this.

    Sums are those of ``names``, or of all parameters that are trained, in the types that these have in the
    loop, which adds in them, too. Penalties come after all calls. With a ``draw`` everything is rounded
    otherwise.
    """
    window, weighed, shards, ranks = step.window, step.weighed, step.shards, step.shards.ranks
    some = [name for name in replay.trained if names is None or name in names]
    if any(each != some for each in ranks.all_gather(some)):
        raise NotComparableError("ranks train other parameters")
    sums = _zeros({name: replay.parameters[name] for name in some}, replay.types, shards)
    passes = sorted({each.backward for some in (window.calls, window.penalties) for each in some})
    columns: dict[int, dict[str, torch.Tensor]] = {number: {} for number in passes}
    is_counted = step.counted[ranks.rank] == ranks.rank
    outputs = dict[str, Parts]()
    narrowest = Narrowest(replay.parameters.values())
    buckets = _Buckets(some, sums, step, replay)

    def take(backward: int, name: str, gradient: torch.Tensor) -> None:
        column, sample = columns[backward], sampled(gradient)
        column[name] = column[name] + sample if name in column else sample
        if is_counted and name in sums and shards.is_sharded(name):
            buckets.take(name, gradient)
        elif is_counted and name in sums:
            sums[name] += gradient

    def take_call(number: int, is_own: bool) -> None:
        call = window.calls[number]
        with narrowest if draw is None else nullcontext():
            right = replay.outputs(call, draw)
        if is_own:
            outputs.update(_compared(number, call.leaves, right))
        of_pass = partial(take, call.backward) if is_own else lambda name, gradient: None
        replay.differentiate(call, right, weighed.factors[number], of_pass, buckets.add_up, draw)

    def take_penalty(number: int, is_own: bool) -> None:
        penalty, times = window.penalties[number], weighed.of_penalties[number]
        for name, each in sorted(penalty.gradients.items()):
            take(penalty.backward, name, full(each) / times)

    _in_rounds(window.calls, take_call, ranks, replay, buckets.round)
    _in_rounds(window.penalties, take_penalty, ranks, replay, buckets.round)
    for name in some:
        if not shards.is_sharded(name):
            ranks.add_up(sums[name])  # in the order of the model
    return Expected(sums, [columns[number] for number in passes], outputs, narrowest.limits)


def outputs_of(
    window: Window, numbers: Sequence[int], ranks: LoopRanks, replay: Replay, draw: int | None = None
) -> dict[str, Parts]:
    """The outputs of these calls of this rank beside those of a single device.

    With a ``draw`` they are those of one that rounds otherwise. Every rank must call this with the same
    numbers.
    """
    found = dict[str, Parts]()

    def take_call(number: int, is_own: bool) -> None:
        if number in numbers:
            again, right = (
                [each.detach() for each in replay.outputs(window.calls[number], some)]
                for some in (draw, None)
            )
            found.update(_compared(number, again, right) if is_own else {})

    _in_rounds(window.calls, take_call, ranks, replay, lambda act: act())
    return found


def _in_rounds(
    some: Sequence[Any],
    take: Callable[[int, bool], None],
    ranks: LoopRanks,
    replay: Replay,
    around: Callable[[Callable[[], None]], None],
) -> None:
    """Take what each rank has, one by one; where all must compute, one that has no more repeats its last.

    Every rank must call this.
    """
    counts = ranks.all_gather(len(some))
    if replay.is_gathered and 0 in counts and any(counts):
        raise NotComparableError("not every rank calls the model: state replica='full'")

    def of_round(number: int) -> None:
        try:
            if number < len(some) or replay.is_gathered:
                take(min(number, len(some) - 1), number < len(some))
        finally:
            replay.end_round()

    for number in range(max(counts)):
        ranks.together(partial(around, partial(of_round, number)))


def _compared(number: int, found: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> dict[str, Parts]:
    return {
        f"call {number + 1} output {place}": parts(a, b if a is None or b is None else b.to(a.dtype))
        for place, (a, b) in enumerate(zip_longest(found, right))
    }


def _zeros(
    parameters: Mapping[str, torch.Tensor], types: Mapping[str, torch.dtype], shards: Shards
) -> dict[str, torch.Tensor]:
    """Where the gradients of these are added."""
    found = tensors.empty_together(
        {name: (shards.shape(name), types[name], each.device) for name, each in parameters.items()}
    )
    for each in found.values():
        each.zero_()
    return found


Rows = tuple[str, range]
"""Some rows of a parameter: a scalar has one."""


class _Buckets:
    """Adds the gradients of all ranks of what is sharded, which come in any order, in an order of all ranks.

    What is complete is cut to what this rank owns, and added to ``sums``: one bucket as soon as this rank has
    all of it, or those of a block when that is left. A parameter that is larger than a bucket has several.
    The memory of a bucket is there from the beginning: no rank waits for one that has none left.
    """

    def __init__(
        self, names: Sequence[str], sums: dict[str, torch.Tensor], step: Step, replay: Replay
    ) -> None:
        self._sums, self._shards, self._ranks = sums, step.shards, step.shards.ranks
        self._is_in_blocks = replay.is_gathered
        block_of = {name: block for block, some in replay.blocks.items() for name in some}
        self._buckets: list[list[Rows]] = []
        left, before = 0, None
        for name in reversed(names):
            if not self._shards.is_sharded(name):
                continue
            pieces, kind = self._pieces(name), (sums[name].dtype, block_of.get(name))
            size = prod(self._shards.shapes[name]) * sums[name].element_size()
            if size > left or kind != before:
                self._buckets += [[each] for each in pieces]
                left, before = BUCKET, kind
            else:
                self._buckets[-1] += pieces
            left -= size
        flat = dict[torch.dtype, int]()
        for each in self._buckets:
            kind_of = self._wide(each[0][0])
            flat[kind_of] = max(flat.get(kind_of, 0), sum(map(self._count, each)))
        device = next((each.device for each in sums.values()), None)
        self._flat = {each: torch.empty(size, dtype=each, device=device) for each, size in flat.items()}
        self._todo: list[list[Rows]] = []
        self._waiting: dict[str, torch.Tensor] = {}

    def round(self, act: Callable[[], None]) -> None:
        """One call of every rank. What this rank lacks, also because of an error, is zero."""
        self._todo, self._waiting = list(self._buckets), {}
        try:
            act()
        finally:
            self._add_while(lambda rows: True)
            if self._buckets:  # what came twice, as through a reentrant checkpoint
                late = sorted({name for names in self._ranks.all_gather([*self._waiting]) for name in names})
                for rows in (rows for name in late for rows in self._pieces(name)):
                    self._add([rows])

    def take(self, name: str, gradient: torch.Tensor) -> None:
        """The full gradient of this rank's call."""
        known = self._waiting.get(name)
        self._waiting[name] = gradient if known is None else known + gradient
        if not self._is_in_blocks:
            self._add_while(lambda rows: all(each in self._waiting for each, _ in rows))

    def add_up(self, names: Sequence[str]) -> None:
        """These are complete; every rank must call this."""
        of_block = set(names)
        those = [each for each in self._todo if each[0][0] in of_block]
        self._todo = [each for each in self._todo if each[0][0] not in of_block]
        for each in those:
            self._add(each)

    def _add_while(self, is_ready: Callable[[Sequence[Rows]], bool]) -> None:
        while self._todo and is_ready(self._todo[0]):
            self._add(self._todo.pop(0))

    def _wide(self, name: str) -> torch.dtype:
        """Ranks are added in float32 or wider."""
        return torch.promote_types(self._sums[name].dtype, torch.float32)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._shards.shapes[name] or (1,)

    def _count(self, rows: Rows) -> int:
        return len(rows[1]) * prod(self._shape(rows[0])[1:])

    def _pieces(self, name: str) -> list[Rows]:
        (count, *others), size = self._shape(name), self._sums[name].element_size()
        most = max(1, BUCKET // max(1, prod(others) * size))
        return [(name, range(start, min(start + most, count))) for start in range(0, count, most)]

    def _add(self, bucket: Sequence[Rows]) -> None:
        sizes = [*map(self._count, bucket)]
        flat = self._flat[self._wide(bucket[0][0])][: sum(sizes)]
        pieces = [
            piece.view(len(rows), *self._shape(name)[1:])
            for piece, (name, rows) in zip(torch.split(flat, sizes), bucket, strict=True)
        ]
        flat.zero_()
        for piece, (name, rows) in zip(pieces, bucket, strict=True):
            if (gradient := self._waiting.get(name)) is not None:
                shape = self._shape(name)
                piece.copy_(gradient.view(shape)[rows.start : rows.stop])
                if rows.stop == shape[0]:
                    del self._waiting[name]
        try:
            self._ranks.add_up(flat)
        except RuntimeError:  # the others are not there, and wait for nothing
            self._buckets = self._todo = []
            raise
        for piece, (name, rows) in zip(pieces, bucket, strict=True):
            own = self._shards.rows(name)
            some = range(max(own.start, rows.start), min(own.stop, rows.stop))
            if some:
                part = piece[some.start - rows.start : some.stop - rows.start]
                sums = self._sums[name].view(self._shards.shape(name) or (1,))
                sums[some.start - own.start : some.stop - own.start] += self._shards.cut(name, part, 1)
