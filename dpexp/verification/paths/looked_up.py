"""Looked up: where the ids that embedding tables look up stand in a model's inputs.

inputs   [[3, 9], [4, 1]]       ids of a table: inputs[:, 1], a view, which says what to fill
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import tensors


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

    def row_numbers(self) -> torch.Tensor:
        """The row of the input in which each id stands."""
        rows = torch.arange(len(self.input)).view(-1, *[1] * (self.input.dim() - 1)).expand(self.input.shape)
        offset = self.view.storage_offset() - self.input.storage_offset()
        return rows.contiguous().as_strided(self.view.shape, self.view.stride(), offset)


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
