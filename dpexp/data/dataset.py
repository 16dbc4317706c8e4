"""Dataset: samples as batches in a seeded order, and the loss that goes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpexp.data.chance import Order
from dpexp.data.objective import Objective
from dpexp.features import Features


@dataclass(frozen=True, slots=True)
class Batch:
    """``inputs`` are the model's positional arguments; every tensor has ``rows`` rows in dimension 0."""

    inputs: tuple[Any, ...]
    targets: Any
    rows: int


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
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
    ) -> Iterator[Batch]:
        """One epoch; the last batch has what is left. The order depends on seed and epoch only."""
        order = Order(self.samples, seed, epoch) if shuffle else None
        for start in range(0, self.samples, batch_size):
            rows = slice(start, min(start + batch_size, self.samples))
            yield self.take(rows if order is None else order[rows])

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar: the mean over the rows."""
        return self.objective.loss(outputs, targets)

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """The part of the targets that the outputs hit, from 0 to 1; None where that has no meaning."""
        return self.objective.accuracy(outputs, targets)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over types, shapes and bytes of the samples; computed when first asked for."""
        return digest(self.content())


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
        inputs = [cast(tensor, dtype) for tensor in self.inputs]
        test = self.test.to(dtype) if self.test is not None else None
        targets = cast(self.targets, dtype)
        return TensorDataset(
            self.name, inputs, targets, self.description, self.features, self.objective, test
        )


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The tensor in this type if it is a floating-point one; everything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def digest(tensors: Iterator[Tensor]) -> str:
    """SHA-256 over type, shape and bytes of each tensor in turn."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
