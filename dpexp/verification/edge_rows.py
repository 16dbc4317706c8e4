"""Edge rows: a batch with rows that a wrong layout may treat otherwise, and that a few batches may lack.

    row 0      ids: the last one twice, padding, the first, both sides of each boundary between shards
    row 1      row 0 again, with its target
    row 2      the next of these ids; numbers: all zero
    row 3      the next of these ids; numbers: an outlier
    last row   a single id throughout

Ids are integers that all go into embedding tables as they are. Masks, weights and lengths stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpexp import tensors
from dpexp.data.batch import Batch, Change
from dpexp.strategies.sync_batch_norm import without_ranks
from dpexp.training.preserve import preserved, uncompiled
from dpexp.verification.alone import alone

SHARDS = sorted(range(2, 65), key=lambda count: (count.bit_count() > 1, count))
"""Into so many shards a table may be split; powers of two come first, since not all boundaries may fit in."""
OUTLIER = 100
"""An outlier is so many times as large as the largest number of its input."""
FEW = 4
"""A batch of fewer rows has no rows alike: a batch norm would see nothing else."""


def with_edge_rows(model: nn.Module, batch: Batch, shards: int = 2) -> Batch | None:
    """The batch with those edge rows that the model takes in place of others; None where there are none.

    The boundaries between so many ``shards`` come first. The model computes in its own type, and is not
    changed.
    """
    if batch.rows < 2 or not _is_plain(batch.inputs):
        return None
    inputs = tensors.map_tensors(lambda each: each.clone(memory_format=torch.contiguous_format), batch.inputs)
    lookups = _Lookups(inputs, shards)
    with preserved(model), without_ranks(model), uncompiled(model), torch.no_grad(), alone():
        try:
            with lookups:
                is_finite = _is_finite(model(*inputs))
        except Exception:  # of any kind: it is the user's model, which may need gradients
            return None
        if not all(map(torch.equal, tensors.walk(inputs), tensors.walk(batch.inputs))):
            return None  # it writes to its inputs
        made = given = replace(batch, inputs=inputs)
        for edit in (partial(lookups.with_edges, rows=batch.rows), _with_zero_row, _with_outlier):
            edited = tensors.map_tensors(partial(_if_rows, edit, batch.rows), made.inputs)
            made = _taken(model, made, replace(made, inputs=edited), is_finite)
        if batch.rows >= FEW:
            made = _taken(model, made, made.chosen([0, 0, *range(2, batch.rows)]), is_finite)
    return None if made is given else made


def _taken(model: nn.Module, batch: Batch, edited: Batch, is_finite: bool) -> Batch:
    """The edited batch, where it is another one that the model takes; else the batch."""
    if all(map(torch.equal, tensors.walk(batch.inputs), tensors.walk(edited.inputs))):
        return batch
    with suppress(Exception):  # of any kind: it is the user's model
        if _is_finite(model(*edited.copied().inputs)) or not is_finite:
            return edited
    return batch


def _if_rows(edit: Change, rows: int, tensor: torch.Tensor) -> torch.Tensor:
    return edit(tensor) if tensor.dim() and len(tensor) == rows else tensor


def _is_plain(value: Any) -> bool:
    """Whether it is made of tensors, numbers and PyTorch's own containers of them alone."""
    if type(value) not in (tuple, list, dict):
        return isinstance(value, torch.Tensor) or tensors.entries(value) is None
    return all(_is_plain(entry) for _, entry in tensors.entries(value) or ())


def _is_finite(outputs: Any) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors.walk(outputs))


# --- numbers ----------------------------------------------------------------------------------------------


def _are_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has what may be of any size, and no whole numbers, parts of one, or weights of rows."""
    if not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.isfinite().all():
        return False
    are_parts = any(
        bool((tensor >= 0).all()) and bool((sums - 1).abs().max() < 1e-3)
        for sums in (tensor.sum(-1), tensor.flatten(1).sum(1))
    )
    return not are_parts and not torch.equal(tensor, tensor.round())


def _with_zero_row(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    if _are_numbers(tensor):
        made[min(2, len(made) - 1)] = 0
    return made


def _with_outlier(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    if _are_numbers(tensor) and len(made) >= FEW:
        made[3] *= OUTLIER * tensor.abs().max() / made[3].abs().max().clamp(min=torch.finfo(made.dtype).tiny)
    return made


# --- ids --------------------------------------------------------------------------------------------------


class _Lookups(TorchFunctionMode):
    """What tables look up in a forward on ``inputs``: the ids, the table's rows, its padding, the table."""

    def __init__(self, inputs: Any, shards: int) -> None:
        super().__init__()
        self._counts = [shards, *SHARDS] if shards > 1 else SHARDS
        self._storages = {each.untyped_storage().data_ptr() for each in tensors.walk(inputs)}
        self._found = list[tuple[torch.Tensor, int, int | None, int]]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (functional.embedding, functional.embedding_bag):
            given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            table = given["weight"]
            self._found.append((given["input"], len(table), given.get("padding_idx"), id(table)))
        return func(*args, **(kwargs or {}))

    def with_edges(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        """One of the inputs, with edge ids in place of others; itself where it does not have ids alone."""
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            return tensor
        tables = dict[int, tuple[int, int | None, list[torch.Tensor]]]()
        for ids, size, padding, table in self._found:
            tables.setdefault(table, (size, padding, []))[2].append(self._places(ids, tensor))
        made = tensor.flatten().clone()
        is_id = torch.zeros_like(made, dtype=torch.bool)
        for size, padding, places in sorted(tables.values(), key=itemgetter(0), reverse=True):
            where = torch.unique(torch.cat(places))  # the smallest table of an id comes last
            is_id[where] = True
            edges = _edge_ids(min(size, torch.iinfo(made.dtype).max + 1), padding, self._counts)
            _write(made, where, where * rows // tensor.numel(), rows, edges)
        return made.view(tensor.shape) if is_id.all() else tensor

    def _places(self, ids: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Where in the flat input the ids stand: as a view of it, or as a copy of all that is in it."""
        numbers, storage = torch.arange(tensor.numel()), ids.untyped_storage().data_ptr()
        if storage == tensor.untyped_storage().data_ptr():
            return numbers.as_strided(ids.shape, ids.stride(), ids.storage_offset()).flatten()
        values = [each.flatten().long().sort().values for each in (ids, tensor)]
        return numbers if storage not in self._storages and torch.equal(*values) else numbers[:0]


def _write(
    ids: torch.Tensor, places: torch.Tensor, row: torch.Tensor, rows: int, edges: tuple[int, list[int]]
) -> None:
    """Write edge ids to these places of flat ids, which are in these rows: a single one to the last row."""
    single, others = edges
    if rows >= FEW:
        ids[places[row == rows - 1]] = single
        places = places[(row != 1) & (row != rows - 1)]
    ids[places[: len(others)]] = torch.tensor(others, dtype=ids.dtype)[: len(places)]


def _edge_ids(size: int, padding: int | None, counts: Sequence[int]) -> tuple[int, list[int]]:
    """The id of the last row, and others in order: the last id twice, padding, the first id, boundaries.

    ``counts`` are numbers of shards. Their size is rounded up or down.
    """
    found = dict.fromkeys([size - 1, size - 1 if padding is None else padding % size, 0])
    for count in counts:
        for rows in filter(None, (-(-size // count), size // count)):
            for boundary in range(rows, size, rows):
                found |= {boundary: None, boundary - 1: None}
    single = size // 3 + (padding == size // 3 < size - 1)
    return single, [each for each in (size - 1, *found) if each != single]
