"""Stream: the batches of whatever a user iterates over: a DataLoader, a list, a generator function.

It is iterated as it was written, with its samplers, workers and ``drop_last``. Before each epoch
``set_epoch(epoch)`` is called where there is one, and generators begin with a seed of the epoch: so every
rank draws the same global batches, of which it computes its rows.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import length_hint
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from dpexp.config.errors import ConfigError
from dpexp.config.words import plural
from dpexp.data.rng import apart, epoch_seed
from dpexp.data.user_batch import as_batch

MOST_BATCHES = 100_000
"""An epoch with more batches is taken to have no end."""


@dataclass(frozen=True)
class Stream:
    """``make`` returns what to iterate over for an epoch; ``what`` begins every error.

    ``forward`` is the signature of the model's forward, where that is known.
    """

    make: Callable[[], Iterable[Any]]
    what: str
    forward: inspect.Signature | None = None

    def batches(self, batch_size: int, seed: int, epoch: int, shuffle: bool) -> Iterator[Any]:
        """The batches of one epoch. Their size and their order are the user's."""
        del batch_size, shuffle
        number = epoch_seed(seed, epoch)
        return apart(self._begun(number, epoch), number)

    def _begun(self, seed: int, epoch: int) -> Iterator[Any]:
        source, number = self.make(), 0
        if isinstance(source, DataLoader):
            source._iterator = None  # persistent workers would go on with the numbers of another epoch
        for part in _parts(source):
            if isinstance(part, DistributedSampler) and part.num_replicas > 1:
                text = "splits each batch over the ranks: give all the same loader, without that sampler"
                raise ConfigError(f"{self.what} has a DistributedSampler, and dpexp {text}")
            if isinstance(own := getattr(part, "generator", None), torch.Generator):
                own.manual_seed(seed)
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)
        for number, each in enumerate(source, 1):  # noqa: B007 # it is how many there were
            yield each
        expected = len(self._rows) if "_rows" in vars(self) else number
        if number != expected or not number:
            drops = not number and getattr(source, "drop_last", False)
            raise ConfigError(
                f"{self.what} gives {plural(number, 'batch')} in epoch {epoch}: every epoch needs as many "
                f"as the first, and at least one{'; drop_last drops a smaller one' if drops else ''}"
            )

    @cached_property
    def _rows(self) -> list[int]:
        """The rows of each batch of an epoch. One is iterated to its end where the loader does not tell."""
        source: Any = self.make()
        first = as_batch(next(self.batches(0, 0, 0, True)), self.forward, self.what).rows
        is_sized = isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset)
        size, samples = (source.batch_size or 0, length_hint(source.sampler)) if is_sized else (0, 0)
        if size and first == min(size, samples):
            rest = 0 if source.drop_last else samples % size
            rows = [size] * (samples // size) + [rest] * bool(rest)
        else:
            batches = islice(self.batches(0, 0, 0, True), MOST_BATCHES + 1)
            rows = [as_batch(batch, self.forward, self.what).rows for batch in batches]
            if len(rows) > MOST_BATCHES:
                raise ConfigError(
                    f"{self.what} gives more than {MOST_BATCHES:,} batches in an epoch, which must have an "
                    "end: take some of them with itertools.islice"
                )
        return rows

    @property
    def samples(self) -> int:
        """How many samples an epoch has."""
        return sum(self._rows)

    def rows(self, batch_size: int) -> dict[int, int]:
        """{rows: how many batches of an epoch have so many}; those of the last batch come last."""
        counts = Counter(self._rows)
        last = counts.pop(self._rows[-1])
        return {**counts, self._rows[-1]: last}


def _parts(source: Any) -> list[Any]:
    """What may have a generator or an epoch of its own: a loader, its data set and its samplers."""
    batches = getattr(source, "batch_sampler", None)
    names = "dataset", "sampler", "batch_sampler"
    return [source, *(getattr(source, name, None) for name in names), getattr(batches, "sampler", None)]
