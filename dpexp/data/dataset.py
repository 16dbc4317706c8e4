"""Dataset: the global batches of each epoch, the held-out part, and the loss of a model on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.data.rng import apart, epoch_seed, generator
from dpexp.data.stream import Stream
from dpexp.data.user_batch import as_batch

DIGESTED = 10, 100
"""The digest is computed over so many batches of so many samples."""


@dataclass(frozen=True)
class Samples:
    """Samples by number, each once per epoch, in batches of ``--batch-size``; the last may have fewer rows.

    ``fetch`` gives the batch of some numbers; ``draws`` says that it may draw random numbers.
    """

    samples: int
    fetch: Callable[[Tensor], Any]
    draws: bool = False

    @classmethod
    def of(cls, columns: Any, what: str) -> Samples:
        """Those of a pytree of tensors with the samples in dimension 0. Raises ConfigError for others."""
        if shapes := unequal_rows(columns):
            text = "each must have the samples in dimension 0, equally many"
            raise ConfigError(f"{what} gives tensors of the shapes {shapes}: {text}")
        count = len(next(tensors.walk(columns)))
        if not count:
            raise ConfigError(f"{what} is empty: its tensors have no rows")
        # ``tensor[indices]`` would wake all intra-op threads for a small batch, for twice the time
        return cls(count, lambda rows: tensors.map_tensors(lambda each: each.index_select(0, rows), columns))

    def rows(self, batch_size: int) -> dict[int, int]:
        """{rows: how many batches of an epoch have so many}; those of the last batch come last."""
        return even_rows(self.samples, batch_size)

    def batches(self, batch_size: int, seed: int, epoch: int, shuffle: bool) -> Iterator[Any]:
        """The batches of one epoch, which depend on seed and epoch only."""
        rng = generator(seed, f"order of epoch {epoch}")
        order = torch.randperm(self.samples, generator=rng) if shuffle else None
        ends = ((at, min(at + batch_size, self.samples)) for at in range(0, self.samples, batch_size))
        numbers = (torch.arange(*each) if order is None else order[slice(*each)] for each in ends)
        batches = map(self.fetch, numbers)
        return apart(batches, epoch_seed(seed, epoch)) if self.draws else batches


Epochs = Samples | Stream


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """What a run trains on: global batches, which are the same on every rank. ``test`` is held out.

    ``forward`` is the signature of the model's forward, which the keys of a batch fit. ``note`` says what the
    source had to assume.
    """

    name: str
    description: str
    objective: Objective
    epochs: Epochs
    test: Dataset | None = None
    forward: inspect.Signature | None = None
    dtype: torch.dtype | None = None
    note: str = ""

    def batches(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
    ) -> Iterator[Batch]:
        """The global batches of one epoch, in the order of seed and epoch or, for samples, unshuffled.

        Floating-point tensors have the type of the data set, if it has one. Raises ConfigError.
        """
        for values in self.epochs.batches(batch_size, seed, epoch, shuffle):
            batch = as_batch(values, self.forward, f"--data {self.name}", not self.objective.is_given)
            yield batch if self.dtype is None else batch.changed(partial(tensors.cast, dtype=self.dtype))

    def to(self, dtype: torch.dtype) -> Dataset:
        """The same with floating-point inputs and targets of this type; ids keep their type."""
        return replace(self, dtype=dtype, test=self.test and self.test.to(dtype))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over types, shapes and bytes of the first samples, and how many there are."""
        count, rows = DIGESTED

        def digested() -> Iterator[Tensor]:
            covered = 0
            for batch in islice(self.batches(rows, shuffle=False), count):
                covered += batch.rows
                yield from tensors.walk((batch.inputs, batch.targets))
            if covered < self.epochs.samples:
                yield torch.tensor(self.epochs.samples)

        return tensors.digest(digested())


def even_rows(samples: int, batch_size: int) -> dict[int, int]:
    """``Samples.rows`` of so many samples: all batches but the last have the same size."""
    full, rest = divmod(samples, batch_size)
    return {rows: count for rows, count in ((batch_size, full), (rest, 1)) if rows and count}


def unequal_rows(values: Any) -> str:
    """The shapes of the tensors, unless all have equally many rows in dimension 0."""
    shapes = [tuple(tensor.shape) for tensor in tensors.walk(values)]
    is_equal = len({shape[:1] for shape in shapes}) == 1 and () not in shapes
    return "" if is_equal else ", ".join(map(str, shapes)) or "none"
