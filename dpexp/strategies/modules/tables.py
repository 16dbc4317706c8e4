"""Embedding tables: those in a model as written, and what a layout has put in their place."""

from abc import ABC, abstractmethod

import torch
from torch import nn

EmbeddingTable = nn.Embedding | nn.EmbeddingBag


class TablePart(nn.Module, ABC):
    """In place of an embedding table of which this process has a part: same ids, same outputs.

    ``weight`` and its gradient, ``sparse`` or not, are of this part, which ``placement`` describes in words;
    ``full_shape`` is ``(rows, dim)`` of the table.
    """

    weight: nn.Parameter
    sparse: bool
    full_shape: tuple[int, ...]
    placement: str

    @abstractmethod
    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """Distinct ids ``(n,)``, ascending -> vectors ``(n, dim)``; every rank must call this."""

    @abstractmethod
    def asked(self, ids: torch.Tensor) -> torch.Tensor:
        """How many of distinct ids, ascending, each rank is asked for: ``(ranks,)``."""


PlacedTable = EmbeddingTable | TablePart


def tables(module: nn.Module) -> list[EmbeddingTable]:
    """The embedding tables in a module."""
    return [part for part in module.modules() if isinstance(part, EmbeddingTable)]


def placed_tables(module: nn.Module) -> list[PlacedTable]:
    """The embedding tables in a module, and the parts in place of some."""
    return [part for part in module.modules() if isinstance(part, PlacedTable)]
