"""Which rank has which part of an embedding table: some rows, the whole table, or some columns.

::

    by row                  by table               by column
    table 0  rank 0         table 0  rank 0        table 0  rank 0 | rank 1
             ------         -------                table 1  rank 0 | rank 1
             rank 1         table 1  rank 1
    a table that is         as many tables as      a table that is
    large                   balance the ranks      wider than long

The terms are those of TorchRec (Ivchenko et al., "TorchRec: a PyTorch domain library for recommendation
systems", 2022): row-wise, table-wise and column-wise sharding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.strategies.modules.tables import EmbeddingTable, tables

UNEVEN = 1.1
"""The most bytes that whole tables may give to a rank, as a multiple of an even share of all tables."""


@dataclass(frozen=True)
class Shard:
    """What one rank has of a table: these columns of these rows."""

    rows: range
    columns: range

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    def of(self, shape: Sequence[int]) -> str:
        """The shard of a table of this shape in words, as the device map has them."""
        if self.shape == tuple(shape):
            return "the whole table"
        if not self.rows or not self.columns:
            return "no rows" if not self.rows else "no columns"
        if len(self.rows) < shape[0]:
            return f"rows {self.rows[0]} to {self.rows[-1]}"
        return f"columns {self.columns[0]} to {self.columns[-1]}"


Split = tuple[Shard, ...]
"""The shard of each rank."""


def plan_shards(
    tables: Sequence[torch.Tensor], ranks: int, by: str, *, columns: bool = True
) -> dict[torch.Tensor, Split]:
    """The shards of each table, by its weight ``(rows, dim)``.

    ``by`` is ``row``, ``table``, ``column`` or ``auto``: the largest tables first, a table goes as a whole to
    the rank with the fewest bytes, if that rank then has at most ``UNEVEN`` times an even share of all bytes.
    Others are split, by column if they have more columns than rows and ``columns`` allows it, else by row.
    """
    share, load = sum(table.nbytes for table in tables) / ranks, [0.0] * ranks
    found = {}
    for table in sorted(tables, key=lambda table: -table.nbytes):
        rows, width = table.shape
        owner = load.index(min(load))
        if by == "table" or (by == "auto" and load[owner] + table.nbytes <= UNEVEN * share):
            load[owner] += table.nbytes
            found[table] = _whole((rows, width), ranks, owner)
            continue
        load = [bytes + table.nbytes / ranks for bytes in load]
        is_wide = by == "column" or (by == "auto" and columns and width > rows)
        found[table] = _by_column((rows, width), ranks) if is_wide else _by_row((rows, width), ranks)
    return found


def _whole(shape: tuple[int, int], ranks: int, owner: int) -> Split:
    return tuple(Shard(range(shape[0] if rank == owner else 0), range(shape[1])) for rank in range(ranks))


def _by_row(shape: tuple[int, int], ranks: int) -> Split:
    return tuple(Shard(rows, range(shape[1])) for rows in _split(shape[0], ranks))


def _by_column(shape: tuple[int, int], ranks: int) -> Split:
    return tuple(Shard(range(shape[0]), columns) for columns in _split(shape[1], ranks))


def _split(count: int, ranks: int) -> list[range]:
    """``range(count)`` in one piece for each rank, as ``Tensor.chunk`` splits; the last may be empty."""
    size = -(-count // ranks)
    return [range(min(count, rank * size), min(count, (rank + 1) * size)) for rank in range(ranks)]


def with_own_forward(tables: Iterable[EmbeddingTable]) -> list[EmbeddingTable]:
    """The tables of a subclass whose forward is not the lookup of ``nn.Embedding`` or ``nn.EmbeddingBag``."""
    known = (nn.Embedding.forward, nn.EmbeddingBag.forward)
    return [table for table in tables if type(table).forward not in known]


def check_shardable(module: nn.Module, where: str) -> None:
    """Raises ConfigError for a module without an embedding, or with one whose forward needs all of it."""
    found = tables(module)
    if not found:
        raise ConfigError(f"--shard-embedding: {where} has no embedding; name with --host a module that has")
    for part in with_own_forward(found):
        raise ConfigError(
            f"--shard-embedding: {part} in {where} computes more than a lookup in its forward: compute it in "
            "a module around the table, so that the table is an nn.Embedding or nn.EmbeddingBag"
        )
    for part in found:
        if part.max_norm or part.scale_grad_by_freq:
            raise ConfigError(
                f"--shard-embedding: {part} in {where} cannot be split over ranks: max_norm and "
                "scale_grad_by_freq need the ids of all ranks"
            )
