"""Batch: the rows that are computed together, all of a global batch or those of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.errors import ConfigError, plural

RankRows = Callable[[int], slice]
"""From the number of rows of a global batch to the rows that a rank computes."""

Change = Callable[[torch.Tensor], torch.Tensor]

STAND_IN_ROWS = 2
"""A rank without rows computes the first rows of the batch with weight 0, because the other ranks wait for it
in collective operations. It computes two rows, because BatchNorm refuses a batch of one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, or the part of its rows that a rank computes.

    ``inputs`` are the model's positional arguments. Tensors have ``rows`` rows in dimension 0; others, as a
    scalar or the values of a packed batch, belong to all rows. Where ``rows`` is 0, the
    tensors hold ``STAND_IN_ROWS`` rows, which must not count.
    """

    inputs: tuple[Any, ...]
    targets: Any
    rows: int
    global_rows: int
    share: float | None = None

    @property
    def weight(self) -> float:
        """The weight in the loss of the global batch: ``share``, or else the fraction of its rows."""
        return self.rows / self.global_rows if self.share is None else self.share

    def part(self, rank_rows: RankRows) -> Batch:
        """The part of this global batch that a rank computes."""
        local = rank_rows(self.rows)
        rows = local.stop - local.start
        if rows == self.rows:
            return self
        return self.sliced(local if rows else slice(0, min(self.rows, STAND_IN_ROWS)), rows)

    def sliced(self, rows: slice, counted: int | None = None) -> Batch:
        """These rows of the global batch, of which so many count."""
        found = self._mapped(lambda tensor: tensor[rows])
        return Batch(*found, rows.stop - rows.start if counted is None else counted, self.rows)

    def chosen(self, numbers: Sequence[int]) -> Batch:
        """These rows as a global batch of its own, in new memory; numbers beyond the last row begin anew."""
        index = torch.tensor([number % self.rows for number in numbers])
        inputs, targets = self._mapped(lambda tensor: tensor.index_select(0, index), torch.clone)
        return Batch(inputs, targets, len(index), len(index))

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """One global batch with the rows of all. Raises ValueError where they do not fit together."""
        if any(batch.whole() for batch in batches):
            raise ValueError("a tensor has no rows")
        inputs, targets = tensors.joined([(batch.inputs, batch.targets) for batch in batches])
        rows = sum(batch.rows for batch in batches)
        return cls(inputs, targets, rows, rows)

    def changed(self, change: Change) -> Batch:
        """The batch with every tensor changed to one of the same rows."""
        inputs, targets = tensors.map_tensors(change, (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def copied(self) -> Batch:
        """The batch in memory of its own: a forward may write to its inputs, and a loss to its targets."""
        return self.changed(torch.clone)

    def whole(self) -> dict[str, str]:
        """{path: shape} of the tensors that have no rows to split; those of one row broadcast, and have."""
        leaves = [*tensors.leaves(self.inputs, "inputs"), *tensors.leaves(self.targets, "targets")]
        found = {path: leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}
        return {
            path: str(tuple(leaf.shape))
            for path, leaf in found.items()
            if not self._has_rows(leaf) and leaf.shape[:1] != (1,)
        }

    def check_rows(self, parts: int) -> None:
        """Raises ConfigError for a batch that a layout splits into parts, and that has whole tensors."""
        whole = self.whole()
        if parts > 1 and whole:
            shapes = ", ".join(f"{path} has shape {shape}" for path, shape in whole.items())
            raise ConfigError(
                f"the layout splits a batch of {plural(self.rows, 'row')} into {parts} parts, and {shapes}: "
                "without these rows in dimension 0 it cannot be split. Give it a value for each row "
                "(x.expand(rows)), padded where rows differ in length, or pass a number; a layout that does "
                "not split rows, as single, takes it as it is"
            )

    def _mapped(
        self, change: Change, change_whole: Change = lambda tensor: tensor
    ) -> tuple[tuple[Any, ...], Any]:
        """Inputs and targets with every tensor changed; ``change_whole`` is for those without rows."""

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            return change(tensor) if self._has_rows(tensor) else change_whole(tensor)

        inputs, targets = tensors.map_tensors(changed, (self.inputs, self.targets))
        return inputs, targets

    def _has_rows(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() > 0 and len(tensor) == self.rows
