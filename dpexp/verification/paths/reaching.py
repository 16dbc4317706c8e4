"""Reaching: batches made from those of a run, so that verification takes paths that these do not.

    one row in all             a, and no row for others      all rows alike     a a | a a
    one row for each piece     a | b                         the most uneven    a b | c d | e
    every id                   0 1 | 2 3 | 4 5 …             rows of one id     0 0 | 7 7 | 15 15

A piece is what a rank or a replica computes. Batches that a single device refuses, in whole or in pieces, are
left out: no run has them. So are those whose pieces leave a rank without a gradient, for which others wait.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.ranks.sync_batch_norm import on_one_device
from dpexp.verification.paths.looked_up import Lookup, looked_up
from dpexp.verification.steps.model_copy import empty_containers
from dpexp.verification.touched_rows import large_tables

SMALL_TABLE = 4096
"""Rows of a table up to which every one of them is looked up, unless it is compared by touched rows."""

NUMBERS = 1 << 14
"""A made batch has at most so many numbers in its inputs, or as many as the batch that it is made from."""


@dataclass(frozen=True)
class Made:
    """A global batch, and in words what is special about it."""

    batch: Batch
    what: str


@dataclass(frozen=True)
class Reached:
    """The batches to step, and why others are ``left_out``: ``{what: why}``."""

    batches: tuple[Made, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pieces:
    """How a layout splits the rows of a batch: over ``ranks``, and each part over ``replicas``.

    ``is_fixed``: it may refuse batches with another number of rows, as a pipeline of micro-batches does.
    """

    ranks: int = 1
    replicas: int = 1
    is_fixed: bool = False

    @classmethod
    def of_layout(cls, group: ProcessGroup, devices: Sequence[torch.device]) -> Pieces:
        """Those that a layout may make. Ranks that share rows may cut them into micro-batches."""
        return cls(group.dp_size, max(1, len(devices)), group.size != group.dp_size)

    @property
    def count(self) -> int:
        """Pieces of a batch that has rows for all of them."""
        return self.ranks * self.replicas

    def of(self, batch: Batch) -> Iterator[Batch]:
        """The pieces of a batch that have rows; both splits are those of ``Tensor.chunk``."""
        for part in torch.arange(batch.rows).chunk(self.ranks):
            for piece in part.chunk(self.replicas):
                yield batch.sliced(slice(int(piece[0]), int(piece[-1]) + 1))


def reaching(model: nn.Module, objective: Objective, first: Batch, pieces: Pieces, trains: bool) -> Reached:
    """The batches that are made of ``first``, a batch of a run; the model is not changed.

    Every rank must give the same, and gets the same.
    """
    if whole := first.whole():
        return Reached((), {"every made batch": f"{', '.join(whole)} cannot be split by rows"})
    with torch.random.fork_rng(devices=[]):
        single = _SingleDevice.of(model, objective, trains)
        try:
            wanted = single.reached(first, pieces)
        except Exception as error:  # of any kind: it is the user's model, which verification calls next
            return Reached((), {"every made batch": describe(error)})
        made = [each for make in (_of_rows, _of_ids) for each in make(single.model, first, pieces)]
        why = {each.what: single.refusal(each.batch, pieces, wanted) for each in made}
    return Reached(
        tuple(each for each in made if not why[each.what]), {what: text for what, text in why.items() if text}
    )


def reached_by_all(
    model: nn.Module, objective: Objective, first: Batch, pieces: Pieces, trains: bool, group: ProcessGroup
) -> list[Made]:
    """The batches that every rank has made; every rank must call this."""
    reached = reaching(model, objective, first, pieces, trains)
    by_rank = group.all_gather([each.what for each in reached.batches])
    return [each for each in reached.batches if all(each.what in whats for whats in by_rank)]


def _of_rows(model: nn.Module, first: Batch, pieces: Pieces) -> Iterator[Made]:
    """Batches with other numbers of rows, and one with equal rows."""
    if not pieces.is_fixed:
        yield Made(rows_of(first, [0]), "one row in all")
    if not pieces.is_fixed and 1 < pieces.count < first.rows:
        yield Made(rows_of(first, range(pieces.count)), "one row for each piece")
        uneven = min(first.rows, 2 * pieces.count - 1)  # two rows in each piece but the last
        yield Made(rows_of(first, range(uneven)), "the most uneven split")
    alike = first.rows if pieces.is_fixed else 2 * pieces.count
    if alike > 1 and not _has_batch_norm(model):  # it leaves nothing but rounding of equal rows
        yield Made(rows_of(first, [0] * alike), "all rows alike")


def _of_ids(model: nn.Module, first: Batch, pieces: Pieces) -> Iterator[Made]:
    """Batches whose ids are those of embedding tables: each of them, and in each row one."""
    lookups = _lookups(model, rows_of(first, range(first.rows)))
    large = large_tables(model)
    small = [each for each in lookups if each.table_rows <= SMALL_TABLE and each.table not in large]
    if small:
        rows = max(math.ceil(each.table_rows * first.rows / each.count) for each in small)
        numbers = sum(tensor.numel() for tensor in tensors.walk(first.inputs)) / first.rows
        most = max(first.rows, int(NUMBERS / numbers))
        chosen = rows_of(first, range(first.rows if pieces.is_fixed else max(pieces.count, min(rows, most))))
        is_small = {each.table for each in small}
        for each in (each for each in _lookups(model, chosen) if each.table in is_small):
            each.fill(torch.arange(each.count) if each.count >= each.table_rows else _spread(each))
        yield Made(chosen, "every id" if rows <= most else "ids from the first to the last")
    if lookups:
        chosen = rows_of(first, range(first.rows if pieces.is_fixed else 2 * pieces.count))
        for each in _lookups(model, chosen):
            each.fill(_one_of_each_row(each, chosen.rows))
        yield Made(chosen, "rows of one id")


def _lookups(model: nn.Module, batch: Batch) -> list[Lookup]:
    """What the tables of the model look up in a batch, that of the smallest last; none if it is refused."""
    try:
        with torch.no_grad():
            found = looked_up(model, batch.inputs)
    except Exception:  # of any kind: it is the user's model, which takes this batch in another mode
        return []
    return sorted(found, key=lambda each: -each.table_rows)


def _spread(lookup: Lookup) -> torch.Tensor:
    """Ids from the first to the last, for each place that is looked up."""
    return torch.linspace(0, lookup.table_rows - 1, lookup.count, dtype=torch.float64).round().long()


def _one_of_each_row(lookup: Lookup, rows: int) -> torch.Tensor:
    """The first row looks up the first id only, and the last row the last one."""
    ids = torch.linspace(0, lookup.table_rows - 1, max(2, rows), dtype=torch.float64).round().long()
    return ids[lookup.row_numbers()].flatten()


def rows_of(batch: Batch, numbers: Sequence[int]) -> Batch:
    """These rows of the batch as one of their own; those beyond its last begin anew."""
    return batch.chosen(numbers)


@dataclass(frozen=True)
class _SingleDevice:
    """A copy of the model on the host, which shares its large tables."""

    model: nn.Module
    objective: Objective
    trains: bool

    @classmethod
    def of(cls, model: nn.Module, objective: Objective, trains: bool) -> _SingleDevice:
        memo: dict[int, Any] = {id(each.weight): each.weight for each in large_tables(model).values()}
        copied = on_one_device(copy.deepcopy(model, empty_containers(model) | memo))
        return cls(copied if trains else copied.eval(), objective, trains)

    def reached(self, batch: Batch, pieces: Pieces) -> frozenset[int]:
        """The parameters, by ``id``, that the loss depends on, where ranks compute pieces; else none.

        Raises what model and loss raise.
        """
        with torch.set_grad_enabled(self.trains):
            outputs = self.model(*batch.inputs)
            loss = self.objective.on_one_device(outputs, batch.targets)
        if not math.isfinite(float(loss.detach())):
            raise FloatingPointError(f"the loss is {float(loss.detach())}")
        return _reached_from(loss) if pieces.ranks > 1 else frozenset()

    def refusal(self, batch: Batch, pieces: Pieces, wanted: frozenset[int]) -> str:
        """Why the batch is left out; empty if it is not."""
        try:
            split = pieces.of(batch) if pieces.count > 1 else ()
            found = [self.reached(each, pieces) for each in (batch, *split)]
        except Exception as error:  # of any kind: it is the user's model
            return f"a single device refuses it: {describe(error)}"
        has_idle = len(torch.arange(batch.rows).chunk(pieces.ranks)) < pieces.ranks
        if has_idle and _has_batch_norm(self.model):
            return "a rank without rows would have statistics of its own"
        if pieces.ranks > 1 and any(each != wanted for each in found):
            return "its rows do not reach the parameters that those of a whole batch reach"
        return ""


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(each, _BatchNorm) for each in model.modules())


def _reached_from(loss: torch.Tensor) -> frozenset[int]:
    """The leaves of the graph of a tensor."""
    nodes, seen, leaves = [loss.grad_fn], set[Any](), set[int]()
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        nodes += [each for each, _ in node.next_functions]
    return frozenset(leaves)
