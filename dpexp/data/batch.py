"""Batch: the rows that are computed together, all of a global batch or those of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.config.words import plural

RankRows = Callable[[int], slice]
"""From the number of rows of a global batch to the rows that a rank computes."""

Change = Callable[[torch.Tensor], torch.Tensor]

STAND_IN_ROWS = 2
"""A rank without rows computes the first rows of the batch with weight 0, because the other ranks wait for it
in collective operations. It computes two rows, because BatchNorm refuses a batch of one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, or the part of its rows that a rank computes.

    ``inputs`` are the model's positional arguments. Tensors, of targets too, are ``(rows, …)``; others, as a
    scalar or the values of a packed batch, belong to all rows. Where ``rows`` is 0, the tensors hold
    ``STAND_IN_ROWS`` rows, which must not count.
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
        inputs_and_targets = self._mapped(lambda tensor: tensor[rows])
        return Batch(*inputs_and_targets, rows.stop - rows.start if counted is None else counted, self.rows)

    def chosen(self, numbers: Sequence[int]) -> Batch:
        """These rows as a global batch of its own, in new memory; numbers beyond the last row begin anew."""
        index = torch.tensor([number % self.rows for number in numbers])
        inputs, targets = self._mapped(lambda tensor: tensor.index_select(0, index), torch.clone)
        return Batch(inputs, targets, len(index), len(index))

    def emptied(self, rows: int) -> Batch:
        """A global batch of so many rows whose numbers are whatever memory holds: tensors without data."""
        inputs, targets = self._mapped(lambda tensor: tensor.new_empty((rows, *tensor.shape[1:])))
        return Batch(inputs, targets, rows, rows)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """One global batch with the rows of all. Raises ValueError where they do not fit together."""
        if any(batch.whole() for batch in batches):
            raise ValueError("a tensor has no rows")
        inputs, targets = tensors.concatenated(
            [(batch.inputs, batch.targets) for batch in batches], of_batches=True
        )
        rows = sum(batch.rows for batch in batches)
        return cls(inputs, targets, rows, rows)

    def changed(self, change: Change) -> Batch:
        """The batch with every tensor ``(rows, …)`` changed to one of the same rows."""
        inputs, targets = tensors.map_tensors(change, (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def copied(self) -> Batch:
        """The batch in memory of its own: a forward may write to its inputs, and a loss to its targets."""
        return self.changed(torch.clone)

    def whole(self) -> dict[str, str]:
        """{path: what it is} of what has no rows to split; tensors of one row broadcast, and have."""
        whole = dict[str, str]()
        for path, leaf in self._leaves():
            name = type(leaf).__name__
            if isinstance(leaf, torch.Tensor):
                if not self._has_rows(leaf) and leaf.shape[:1] != (1,):
                    whole[path] = f"has shape {tuple(leaf.shape)}"
            elif isinstance(leaf, PackedSequence) or callable(getattr(leaf, "to", None)):
                whole[path] = f"is a {name}"
            elif isinstance(leaf, list | tuple):
                whole[path] = f"is a {name} of {len(leaf)}, one {type(leaf[0]).__name__} for each row"
        return whole

    @property
    def has_structure(self) -> bool:
        """Whether rows are in something other than dimension 0 of tensors: in packed sequences, or lists."""
        return any(isinstance(leaf, list | tuple) for _, leaf in self._leaves())

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        """(path, leaf) of inputs and targets; a list with an entry for each row is a leaf."""

        def is_leaf(value: Any) -> bool:
            return rows_of(value, self.rows) is not None

        for index, value in enumerate(self.inputs):
            yield from tensors.leaves(value, f"inputs[{index}]", is_leaf)
        yield from tensors.leaves(self.targets, "targets", is_leaf)

    def check_rows(self, parts: int, splits_targets: bool = True) -> None:
        """Raises ConfigError for a batch that a layout splits into parts, and that has whole values.

        Without ``splits_targets`` the loss gets the targets of all rows, which may have lists of numbers or
        strings.
        """
        whole = self.whole()
        if not splits_targets and next(tensors.walk(self.targets), None) is None:
            whole = {path: what for path, what in whole.items() if not path.startswith("targets")}
        if parts > 1 and whole:
            paths = ", ".join(f"{path} {what}" for path, what in whole.items())
            raise ConfigError(
                f"the layout splits a batch of {plural(self.rows, 'row')} into {parts} parts, and {paths}: "
                f"without these rows in dimension 0 it cannot be split. {self._remedy()}; a layout that does "
                "not split rows, as single, takes it as it is"
            )

    def _remedy(self) -> str:
        """How a batch can be given that has whole values."""
        leaves = [leaf for _, leaf in self._leaves()]
        if any(isinstance(leaf, PackedSequence) for leaf in leaves):
            return "Give the padded sequences and their lengths as tensors, and pack them in the forward"
        if any(hasattr(leaf, "to") and not isinstance(leaf, torch.Tensor) for leaf in leaves):
            return "Give the tensors in it as a tuple, a dict or a dataclass"
        if self.has_structure:
            return "Give a tensor with a value for each row, padded or stacked"
        whole = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not self._has_rows(leaf)]
        if any(leaf.shape[1:2] == (self.rows,) for leaf in whole):
            return (
                "Rows in dimension 1, as of the hidden state of an RNN: give x.transpose(0, 1), and in the "
                "forward call x.transpose(0, 1).contiguous()"
            )
        return "Give it a value for each row (x.expand(rows)), padded where rows differ, or pass a number"

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


def rows_of(value: Any, rows: int | None = None) -> int | None:
    """The rows of a packed sequence, or of a list with an entry for each row; None of other values.

    Where ``rows`` are not known, such a list is one of dicts, or of tensors of unequal lengths.
    """
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if not isinstance(value, list | tuple) or not value or hasattr(value, "_fields"):
        return None
    lengths = {tuple(each.shape[:1]) for each in tensors.walk(value)}
    if rows is None:
        has_rows = isinstance(value[0], Mapping) or len(lengths) > 1
    else:
        is_of_values = isinstance(value, list) and not lengths  # numbers or strings
        has_rows = len(value) == rows and (is_of_values or not lengths <= {(rows,)})
    return len(value) if has_rows else None
