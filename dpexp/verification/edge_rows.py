"""Edge rows: a batch with rows that a wrong layout may treat otherwise, and that a few batches may lack.

    row 0      ids: the last one twice, padding, the first, both sides of each boundary between shards
    row 1      row 0 again, with its target
    row 2 …    the next of these ids; numbers of row 2: an outlier
    last row   a single id throughout; numbers: all zero

Ids are an input whose numbers all go into embedding tables as they are. Masks, weights and lengths stay.
"""

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


def with_edge_rows(model: nn.Module, batch: Batch, shards: int = 2) -> Batch | None:
    """The batch with those edge rows that the model takes in place of others; None where there are none.

    The boundaries between so many ``shards`` come first. The model computes in its own type, and is not
    changed.
    """
    if batch.rows < 2:
        return None
    inputs = tensors.map_tensors(lambda each: each.clone(memory_format=torch.contiguous_format), batch.inputs)
    made = given = replace(batch, inputs=inputs)
    lookups = _Lookups()
    with preserved(model), without_ranks(model), uncompiled(model), torch.no_grad(), alone():
        try:
            with lookups:
                is_finite = _is_finite(model(*inputs))
        except Exception:  # of any kind: it is the user's model, which may need gradients
            return None
        with_edge_ids = partial(_with_edge_ids, lookups.tables, [shards, *SHARDS])
        for edit in (with_edge_ids, _with_outlier, _with_zeros):
            made = _taken(model, made, _edited(made, edit), is_finite)
        if batch.rows > 2:  # of two rows that are alike, a batch norm would see nothing else
            made = _taken(model, made, made.chosen([0, 0, *range(2, batch.rows)]), is_finite)
    return None if made is given else made


def _edited(batch: Batch, edit: Change) -> Batch:
    """The batch with those inputs edited that have its rows."""

    def edit_rows(tensor: torch.Tensor) -> torch.Tensor:
        return edit(tensor) if tensor.dim() and len(tensor) == batch.rows else tensor

    return replace(batch, inputs=tensors.map_tensors(edit_rows, batch.inputs))


def _taken(model: nn.Module, batch: Batch, edited: Batch, is_finite: bool) -> Batch:
    """The edited batch, where it is another one that the model takes; else the batch."""
    if all(map(torch.equal, tensors.walk(batch.inputs), tensors.walk(edited.inputs))):
        return batch
    with suppress(Exception):  # of any kind: it is the user's model
        if _is_finite(model(*edited.copied().inputs)) or not is_finite:
            return edited
    return batch


def _is_finite(outputs: Any) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors.walk(outputs))


def _are_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has what may be of any size, and no whole numbers, parts of one, or weights of rows."""
    if not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.isfinite().all():
        return False
    are_parts = any(
        bool((tensor >= 0).all()) and bool((sums - 1).abs().max() < 1e-3)
        for sums in (tensor.sum(-1), tensor.flatten(1).sum(1))
    )
    return not are_parts and not torch.equal(tensor, tensor.round())


def _with_outlier(tensor: torch.Tensor) -> torch.Tensor:
    if len(tensor) <= 3 or not _are_numbers(tensor):
        return tensor
    made, largest = tensor.clone(), tensor[2].abs().max().clamp(min=torch.finfo(tensor.dtype).tiny)
    made[2] *= OUTLIER * tensor.abs().max() / largest
    return made


def _with_zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor[:-1], 0 * tensor[-1:]]) if _are_numbers(tensor) else tensor


_Table = tuple[int, int | None, torch.Tensor]
"""The size of a table, its padding, and the ids that it looks up."""


class _Lookups(TorchFunctionMode):
    """Inside, ``tables`` gets one for each lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = list[_Table]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (functional.embedding, functional.embedding_bag):
            given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            self.tables.append((len(given["weight"]), given.get("padding_idx"), given["input"]))
        return func(*args, **(kwargs or {}))


def _with_edge_ids(tables: Sequence[_Table], counts: Sequence[int], tensor: torch.Tensor) -> torch.Tensor:
    """Edge ids in place of others; the tensor itself where not all of it is looked up."""
    if tensor.is_floating_point():
        return tensor
    made, places = tensor.flatten().clone(), torch.arange(tensor.numel())
    row, is_id = places * len(tensor) // max(1, tensor.numel()), torch.zeros_like(places, dtype=torch.bool)
    smallest_last = sorted(tables, key=itemgetter(0), reverse=True)
    for size, padding, ids in smallest_last:
        if ids.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            looked_up = places.as_strided(ids.shape, ids.stride(), ids.storage_offset())
            is_own = torch.isin(places, looked_up)
            is_id |= is_own
            made[is_own & (row == len(tensor) - 1)] = size // 3
            others = places[is_own & (row != 1) & (row < len(tensor) - 1)]
            edges = torch.tensor(_edge_ids(size, padding, counts)[: len(others)], dtype=made.dtype)
            made[others[: len(edges)]] = edges
    return made.view(tensor.shape) if is_id.all() else tensor


def _edge_ids(size: int, padding: int | None, counts: Sequence[int]) -> list[int]:
    """The last id twice, padding, the first id, and boundaries between so many shards, rounded up or down."""
    first = [size - 1, size - 1 if padding is None else padding % size, 0]
    boundaries = [
        boundary - side
        for count in counts
        for rows in (-(-size // count), max(1, size // count))
        for boundary in range(rows, size, rows)
        for side in (0, 1)
    ]
    return [size - 1, *dict.fromkeys([*first, *boundaries])]
