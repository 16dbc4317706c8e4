"""Made batches: batches made from those of a run, so that verification takes paths that these do not.

    one row in all replicas    a, and no row for others      all rows alike     a a | a a
    one row for each piece     a | b                         the most uneven    a b | c d | e
    every id                   0 1 | 2 3 | 4 5 …

A piece is what a rank or a replica computes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.ranks import on_one_device
from dpexp.verification.alone import alone
from dpexp.verification.model_copy import first_copies
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


def made_batches(model: nn.Module, first: Batch, pieces: Pieces) -> list[Made]:
    """The batches that are made of ``first``, a batch of a run; the model is not changed.

    A single device, or the layout, may refuse some of them.
    """
    if first.whole():  # tensors that are not of its rows, as ids of a packed batch
        return []
    memo: dict[int, Any] = {id(each.weight): each.weight for each in large_tables(model).values()}
    with kept_globals(), alone():
        copied = on_one_device(copy.deepcopy(model, first_copies(model) | memo))
        return [*_of_rows(copied, first, pieces), *_of_ids(copied, first, pieces)]


def _of_rows(model: nn.Module, first: Batch, pieces: Pieces) -> Iterator[Made]:
    """Batches with other numbers of rows, and one with equal rows."""
    if not pieces.is_fixed and pieces.ranks == 1:  # ranks without rows have stand-ins, which a loop has not
        yield Made(first.chosen([0]), "one row in all")
    if not pieces.is_fixed and 1 < pieces.count < first.rows:
        yield Made(first.chosen(range(pieces.count)), "one row for each piece")
        uneven = min(first.rows, 2 * pieces.count - 1)  # two rows in each piece but the last
        yield Made(first.chosen(range(uneven)), "the most uneven split")
    alike = first.rows if pieces.is_fixed else 2 * pieces.count
    if alike > 1 and not _has_batch_norm(model):  # it leaves nothing but rounding of equal rows
        yield Made(first.chosen([0] * alike), "all rows alike")


def _of_ids(model: nn.Module, first: Batch, pieces: Pieces) -> Iterator[Made]:
    """A batch whose ids are all of those of embedding tables."""
    lookups = _lookups(model, first.chosen(range(first.rows)))
    large = large_tables(model)
    small = [each for each in lookups if each.table_rows <= SMALL_TABLE and each.table not in large]
    if small:
        rows = max(math.ceil(each.table_rows * first.rows / each.count) for each in small)
        numbers = sum(tensor.numel() for tensor in tensors.walk(first.inputs)) / first.rows
        most = max(first.rows, int(NUMBERS / numbers))
        chosen = first.chosen(range(first.rows if pieces.is_fixed else max(pieces.count, min(rows, most))))
        is_small = {each.table for each in small}
        for each in (each for each in _lookups(model, chosen) if each.table in is_small):
            each.fill(torch.arange(each.count) if each.count >= each.table_rows else _spread(each))
        yield Made(chosen, "every id" if rows <= most else "ids from the first to the last")


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


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(each, _BatchNorm) for each in model.modules())


# --- where the ids that tables look up stand in a model's inputs ---
#
# inputs   [[3, 9], [4, 1]]       ids of a table: inputs[:, 1], a view, which says what to fill


@dataclass(frozen=True)
class Lookup:
    """The ids of one call of a table of ``table_rows``, as a view of an ``input`` of integers."""

    table: str
    table_rows: int
    input: torch.Tensor
    view: torch.Tensor

    @property
    def count(self) -> int:
        """How many ids are looked up."""
        return self.view.numel()

    def fill(self, ids: torch.Tensor) -> None:
        """Write these ids into the input, one for each that is looked up, and valid for the table."""
        self.view.copy_((ids % self.table_rows).view(self.view.shape))


def looked_up(model: nn.Module, inputs: tuple[Any, ...]) -> list[Lookup]:
    """The lookups of a forward whose ids are integers of the inputs, unchanged but for their type.

    Raises what the model raises.
    """
    integers = [each for each in tensors.walk(inputs) if _has_ids(each)]
    found: list[Lookup] = []

    def look(name: str, module: Any, args: Any, kwargs: Any) -> None:
        ids = args[0] if args else kwargs.get("input")
        views = (_view_of(each, ids) for each in integers) if isinstance(ids, torch.Tensor) else ()
        found.extend(
            Lookup(name, module.num_embeddings, each, view)
            for each, view in zip(integers, views, strict=False)
            if view is not None
        )

    with ExitStack() as hooks:
        for name, table in _tables(model):
            hooks.enter_context(table.register_forward_pre_hook(partial(look, name), with_kwargs=True))
        if integers:
            model(*inputs)
    return found


def _tables(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, each) for name, each in model.named_modules() if type(each) in _KINDS)


_KINDS = (nn.Embedding, nn.EmbeddingBag)


def _has_ids(tensor: torch.Tensor) -> bool:
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return is_integer and tensor.is_contiguous() and tensor.numel() > 0


def _view_of(tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor | None:
    """The ids as a view of the tensor; None if they are others."""
    if ids.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        return ids if all(ids.stride()) else None  # several ids in one place
    same = ids.numel() == tensor.numel() and torch.equal(ids.flatten(), tensor.flatten().to(ids.dtype))
    return tensor.view(ids.shape) if same else None
