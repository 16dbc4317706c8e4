"""Dataset: samples in batches of a seeded order, and the loss and accuracy of a model on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dpexp import tensors
from dpexp.data.batch import Batch, RankRows, local_rows
from dpexp.data.objective import Objective
from dpexp.data.rng import epoch_order


@dataclass(eq=False, repr=False)
class Dataset:
    """Samples in batches. ``test`` is the held-out part."""

    name: str
    description: str
    objective: Objective
    test: Dataset | None

    @property
    def samples(self) -> int:
        """The number of samples of an epoch."""
        raise NotImplementedError

    def fetch(self, indices: Tensor) -> tuple[tuple[Any, ...], Any]:
        """Inputs and targets of these samples."""
        raise NotImplementedError

    def digest_input(self) -> Iterator[Tensor]:
        """The tensors that the digest is computed over."""
        raise NotImplementedError

    def batch_rows(self, batch_size: int, seed: int) -> dict[int, int]:
        """{rows: how many batches of an epoch have so many}, the full ones first. Raises ConfigError."""
        full, rest = divmod(self.samples, batch_size)
        return {rows: count for rows, count in ((batch_size, full), (rest, 1)) if rows and count}

    def drawn(self, seed: int) -> str:
        """What the user's code draws for the first epoch, as text, which ranks must agree on."""
        return ""

    @property
    def has_own_batches(self) -> bool:
        """Whether the user's code makes the batches, of any sizes in any order."""
        return False

    def note(self, batch_size: int) -> str:
        """What of the user's data is not used as it is; empty where all is."""
        return ""

    def to(self, dtype: torch.dtype) -> Dataset:
        """The same samples with floating-point inputs and targets of this type; ids keep their type."""
        return self

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        first: int = 0,
        rank_rows: RankRows = lambda rows: slice(0, rows),
    ) -> Iterator[Batch]:
        """The batches of one epoch from number ``first`` on; the last one may have fewer rows.

        The order depends on seed and epoch only. Only the rows that ``rank_rows`` gives are fetched.
        """
        for indices in self.batch_indices(batch_size, seed, epoch, first=first, shuffle=shuffle):
            rows, fetched = local_rows(rank_rows, len(indices))
            yield Batch(*self.fetch(indices[fetched]), rows, len(indices))

    def batch_indices(
        self, batch_size: int, seed: int, epoch: int, *, first: int, shuffle: bool
    ) -> Iterator[Tensor]:
        """The samples of each batch of an epoch, from number ``first`` on."""
        order = epoch_order(self.samples, seed, epoch) if shuffle else None
        for start in range(first * batch_size, self.samples, batch_size):
            end = min(start + batch_size, self.samples)
            yield torch.arange(start, end) if order is None else order[start:end]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over types, shapes and bytes of the samples; computed on first use."""
        return tensors.digest(self.digest_input())


@dataclass(eq=False, repr=False)
class TensorDataset(Dataset):
    """Samples in memory: ``inputs`` and ``targets``, if there are any, have them in dimension 0."""

    inputs: tuple[Tensor, ...]
    targets: Tensor | None

    @property
    def samples(self) -> int:
        return len(self.inputs[0])

    def fetch(self, indices: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        # ``tensor[indices]`` would wake all intra-op threads for a small batch, for twice the time
        targets = None if self.targets is None else self.targets.index_select(0, indices)
        return tuple(tensor.index_select(0, indices) for tensor in self.inputs), targets

    def digest_input(self) -> Iterator[Tensor]:
        yield from tensors.walk((self.inputs, self.targets))

    def to(self, dtype: torch.dtype) -> TensorDataset:
        inputs, targets = tensors.cast((self.inputs, self.targets), dtype)
        return dataclasses.replace(
            self, inputs=inputs, targets=targets, test=self.test and self.test.to(dtype)
        )
