"""Lookups in embedding tables on the host that were done ahead, and their place in the graph of their step.

::

    forward     ids -- looked up ahead --> vectors, of rows written since again --> in the graph of the step
    backward    table <-- node of the lookup <-- gradients, copied to the host <---- of the vectors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp.strategies.hybrid.copy_streams import CopyStreams
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbeddingBag
from dpexp.strategies.modules.tables import PlacedTable


@dataclass(eq=False)
class Lookup:
    """One call of a table: its arguments, the vectors, and the node of its backward."""

    table: PlacedTable
    arguments: Mapping[str, Any]
    vectors: torch.Tensor
    node: Any

    @classmethod
    def of(cls, table: PlacedTable, args: Any, kwargs: Any, vectors: torch.Tensor) -> Lookup:
        """A lookup just done."""
        return cls(table, named_arguments(args, kwargs), vectors.detach(), vectors.grad_fn)

    @property
    def ids(self) -> torch.Tensor:
        """The ids, as the table got them: the rows of ``source``."""
        ids: torch.Tensor = self.arguments["input"]
        return ids

    @property
    def source(self) -> torch.Tensor:
        """What the vectors were looked up in."""
        return self.table.weight

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the table's weight that this process read, in one dimension."""
        return self.ids.reshape(-1)

    def is_of(self, table: PlacedTable, args: Any, kwargs: Any) -> bool:
        """Whether it has the vectors of this call."""
        found, expected = named_arguments(args, kwargs), self.arguments
        return (
            self.table is table
            and found.keys() == expected.keys()
            and all(_same(value, found[key]) for key, value in expected.items())
        )

    def read_again(self, stale: torch.Tensor) -> None:
        """Replace the vectors of the ids at these positions by what the table has now."""
        with torch.no_grad():
            is_bag = isinstance(self.table, nn.EmbeddingBag | ShardedEmbeddingBag)
            positions, vectors = self._bags(stale) if is_bag else self._rows(stale)
            flat = self.vectors.view(-1, self.vectors.shape[-1])
            flat.index_copy_(0, positions.to(flat.device), vectors.to(flat.device))

    def _rows(self, stale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return stale, self.source[self.ids.reshape(-1)[stale]]

    def _bags(self, stale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bags with a stale id, each pooled again from all of its ids."""
        ids, (offsets, weights) = self.ids, (self.arguments.get(key) for key in _NAMES[1:])
        if ids.dim() == 2:
            bags = torch.unique(stale // ids.shape[1])
            return bags, self._pool(ids[bags], None, None if weights is None else weights[bags])
        assert offsets is not None  # ids in one dimension have them
        bag_of = torch.searchsorted(offsets, torch.arange(len(ids)), right=True) - 1
        bags = torch.unique(bag_of[stale])
        kept = torch.isin(bag_of, bags)
        starts = torch.searchsorted(bag_of[kept], bags)
        table: Any = self.table
        if table.include_last_offset:
            starts = torch.cat([starts, kept.sum().reshape(1)])
        return bags, self._pool(ids[kept], starts, None if weights is None else weights[kept])

    def _pool(self, ids: torch.Tensor, offsets: Any, weights: Any) -> torch.Tensor:
        pooled: torch.Tensor = vars(nn.EmbeddingBag)["forward"](self.table, ids, offsets, weights)
        return pooled


_NAMES = ("input", "offsets", "per_sample_weights")


def named_arguments(args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a table's forward by name, without those left out."""
    named = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
    return {key: value for key, value in named.items() if value is not None}


def _same(value: torch.Tensor, other: torch.Tensor) -> bool:
    is_view = value.data_ptr() == other.data_ptr() and value.stride() == other.stride()
    return value.shape == other.shape and (is_view or torch.equal(value, other))


Gradients = Callable[[Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]


def in_graph(lookups: Sequence[Lookup], copies: CopyStreams, to_tables: Gradients) -> Sequence[torch.Tensor]:
    """The vectors of all lookups; in backward their gradients take the way of lookups in this step.

    ``to_tables`` makes those of the tables of those of the lookups' sources.
    """
    if not torch.is_grad_enabled() or all(lookup.node is None for lookup in lookups):
        return [lookup.vectors for lookup in lookups]
    # a table that is looked up twice adds up its gradients from the last to the first, as autograd does
    weights = [lookup.table.weight for lookup in reversed(lookups)]
    vectors: Sequence[torch.Tensor] = _LookedUpAhead.apply(lookups, copies, to_tables, *weights)  # type: ignore[no-untyped-call]
    return vectors


class _LookedUpAhead(torch.autograd.Function):
    """Vectors that were looked up ahead, in the graph in place of the tables' own lookups."""

    @staticmethod
    def forward(
        ctx: Any, lookups: Sequence[Lookup], copies: CopyStreams, to_tables: Gradients, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.nodes, ctx.copies, ctx.to_tables = [lookup.node for lookup in lookups], copies, to_tables
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(lookup.vectors for lookup in lookups if lookup.node is None))
        return tuple(lookup.vectors for lookup in lookups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        on_host = ctx.copies.to_host(gradients)
        found = [
            None if node is None or gradient is None else _first(node(gradient))
            for node, gradient in zip(ctx.nodes, on_host, strict=True)
        ]
        return None, None, None, *reversed(ctx.to_tables(found))


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found
