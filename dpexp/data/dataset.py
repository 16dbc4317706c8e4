"""Dataset: samples as batches in a seeded order, and the loss that goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpexp import tensors
from dpexp.config.features import Features
from dpexp.data.objective import Objective
from dpexp.data.rng import Order

Share = Callable[[int], slice]
"""Which rows of a global batch of so many rows a process computes."""

STAND_IN = 2
"""A rank without rows takes part with the first rows of the batch, weighted 0: the others wait for it.
Two of them, because BatchNorm refuses a batch of one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``inputs`` are the model's positional arguments; every tensor has ``rows`` rows in dimension 0.

    A rank's part of a global batch has ``rows`` of its ``of`` rows. Where that is none, the tensors hold
    a stand-in (see ``STAND_IN``) that must count for nothing.
    """

    inputs: tuple[Any, ...]
    targets: Any
    rows: int
    of: int = -1

    def __post_init__(self) -> None:
        if self.of < 0:
            object.__setattr__(self, "of", self.rows)

    @property
    def weight(self) -> float:
        """The part of the global batch that these rows are."""
        return self.rows / self.of if self.of else 1.0

    def part(self, share: Share) -> Batch:
        """The rows of this global batch that ``share`` gives."""
        rows = share(self.rows)
        taken = rows if rows.stop > rows.start else slice(0, STAND_IN)
        inputs, targets = tensors.map_tensors(lambda tensor: tensor[taken], (self.inputs, self.targets))
        return Batch(inputs, targets, rows.stop - rows.start, self.rows)


class Dataset:
    """Samples in batches. A subclass says in ``take`` how rows are fetched, in ``content`` what it holds.

    ``features`` may be None where nobody said what the samples are; ``test`` is the held-out part.
    """

    def __init__(
        self,
        name: str,
        samples: int,
        description: str,
        features: Features | None,
        objective: Objective,
        test: Dataset | None = None,
    ) -> None:
        self.name = name
        self.samples = samples
        self.description = description
        self.features = features
        self.objective = objective
        self.test = test

    def take(self, rows: Tensor | slice) -> Batch:
        """The samples of these rows: indices, or a slice of step 1."""
        raise NotImplementedError

    def content(self) -> Iterator[Tensor]:
        """Everything that the digest is made of, in order."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> Dataset:
        """The same samples with floating-point inputs and targets of this type; ids stay as they are."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        first: int = 0,
        share: Share | None = None,
    ) -> Iterator[Batch]:
        """One epoch; the last batch has what is left. The order depends on seed and epoch only.

        ``first`` is the batch to begin with. With a ``share`` only those rows of each batch are fetched.
        """
        order = Order(self.samples, seed, epoch) if shuffle else None
        for start in range(first * batch_size, self.samples, batch_size):
            rows = slice(start, min(start + batch_size, self.samples))
            yield self._fetched(rows, order, share)

    def _fetched(self, rows: slice, order: Order | None, share: Share | None) -> Batch:
        if share is None:
            return self.take(rows if order is None else order[rows])
        count = rows.stop - rows.start
        own = share(count)
        taken = own if own.stop > own.start else slice(0, min(count, STAND_IN))
        there = slice(rows.start + taken.start, rows.start + taken.stop)
        batch = self.take(there if order is None else order[there])
        return Batch(batch.inputs, batch.targets, own.stop - own.start, count)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar: the mean over the rows."""
        return self.objective.loss(outputs, targets)

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """The part of the targets that the outputs hit, from 0 to 1; None where that has no meaning."""
        return self.objective.accuracy(outputs, targets)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over types, shapes and bytes of the samples; computed when first asked for."""
        return tensors.digest(self.content())


class TensorDataset(Dataset):
    """Samples that lie in memory: ``inputs`` and ``targets`` have them in dimension 0."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        targets: Tensor,
        description: str,
        features: Features | None,
        objective: Objective,
        test: Dataset | None = None,
    ) -> None:
        super().__init__(name, len(targets), description, features, objective, test)
        self.inputs = tuple(inputs)
        self.targets = targets

    def take(self, rows: Tensor | slice) -> Batch:
        inputs = tuple(tensor[rows] for tensor in self.inputs)
        targets = self.targets[rows]
        return Batch(inputs, targets, len(targets))

    def content(self) -> Iterator[Tensor]:
        yield from (*self.inputs, self.targets)

    def to(self, dtype: torch.dtype) -> TensorDataset:
        inputs = tensors.cast(self.inputs, dtype)
        test = self.test.to(dtype) if self.test is not None else None
        targets = tensors.cast(self.targets, dtype)
        return TensorDataset(
            self.name, inputs, targets, self.description, self.features, self.objective, test
        )
