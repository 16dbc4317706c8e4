"""LoaderOrder: which samples a user's DataLoader takes in an epoch, batch by batch.

::

    shuffle=True             each sample once, in the order of --seed, as without a loader
    shuffle=False            the order of the data set
    sampler, batch_sampler   what they give; the generators that they draw from begin each epoch by --seed, so
                             that every rank takes the same
    drop_last                a smaller last batch is left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from operator import length_hint
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from dpexp.config.errors import ConfigError, as_config_error, plural
from dpexp.data.rng import epoch_order, generator, kept_globals, seed_globals

Indices = Sequence[int] | torch.Tensor
MOST_DRAWN = 100
"""A sampler that gives this many times the samples, and more than its length, is taken to have no end."""


class LoaderOrder:
    """The choices of a loader with batches; ``what`` begins every error. Raises ConfigError."""

    def __init__(self, loader: DataLoader[Any], what: str) -> None:
        given: Any = loader.batch_sampler
        if given is None:
            raise ConfigError(
                f"{what} gives a DataLoader without batch_size, whose samples may be batches already: give "
                "it a batch_size, or a batch_sampler"
            )
        self.what, self._loader = what, loader
        self.batches = None if type(given) is BatchSampler else given
        self.sampler: Any = getattr(given, "sampler", None)
        self.drops_last = self.batches is None and given.drop_last
        self.batch_size: int | None = None if self.batches is not None else given.batch_size
        for each in (given, self.sampler):
            if isinstance(each, DistributedSampler) and each.num_replicas > 1:
                raise ConfigError(
                    f"{what} gives a DataLoader with a DistributedSampler, and dpexp splits each batch over "
                    "the ranks by itself: give every rank the same loader, without it"
                )
        self._drawn: dict[tuple[int, int], list[Any]] = {}

    @property
    def is_shuffled(self) -> bool:
        """Whether it takes each sample once in a random order."""
        sampler = self.sampler
        if self.batches is not None or type(sampler) is not RandomSampler or sampler.replacement:
            return False
        return len(sampler.data_source) == len(self._loader.dataset) == sampler.num_samples  # type: ignore[arg-type]

    @property
    def is_sequential(self) -> bool:
        """Whether it takes each sample once in the order of the data set."""
        if self.batches is not None or type(self.sampler) is not SequentialSampler:
            return False
        return len(self.sampler.data_source) == len(self._loader.dataset)  # type: ignore[arg-type]

    def of_epoch(
        self, samples: int, batch_size: int, seed: int, epoch: int, *, first: int = 0, shuffle: bool = True
    ) -> Iterator[Indices]:
        """The samples of each batch, from number ``first`` on; ``samples`` is how many the data set has.

        Raises ConfigError where an epoch has not as many as the first.
        """
        if self.batches is not None:
            yield from self._draws(self.batches, seed, epoch)[first:]
            return
        order: Any = range(samples)
        if self.is_shuffled:
            order = epoch_order(samples, seed, epoch) if shuffle else order
        elif not self.is_sequential:
            order = self._draws(self.sampler, seed, epoch)
            samples = len(order)
        end = samples - samples % batch_size if self.drops_last else samples
        for start in range(first * batch_size, end, batch_size):
            yield order[slice(start, min(start + batch_size, end))]

    def batch_rows(self, samples: int, batch_size: int, seed: int) -> Counter[int]:
        """{rows: how many batches of an epoch have so many}. Raises ConfigError where there are none."""
        if self.batches is not None:
            rows = Counter(map(len, self._draws(self.batches, seed, 0)))
        else:
            takes_all = self.is_shuffled or self.is_sequential
            full, rest = divmod(samples if takes_all else len(self._draws(self.sampler, seed, 0)), batch_size)
            rows = +Counter({batch_size: full}) + Counter({rest: int(rest > 0 and not self.drops_last)})
        if not rows.total() or 0 in rows:
            why = "drop_last" if self.drops_last else "its sampler"
            raise ConfigError(
                f"{self.what} gives a DataLoader with an empty epoch or batch, by {why}: the data set has "
                f"{plural(samples, 'sample')}, and --batch-size is {batch_size}"
            )
        return rows

    def drawn(self, seed: int) -> str:
        """What its sampler or batch_sampler gives in the first epoch; empty where dpexp orders them."""
        if self.is_shuffled or self.is_sequential:
            return ""
        return str(self._draws(self.sampler if self.batches is None else self.batches, seed, 0))

    def note(self, batch_size: int) -> str:
        """What is not as the loader has it; empty where nothing is."""
        sampler = type(self.batches if self.batches is not None else self.sampler).__name__
        changed = []
        if self.batch_size not in (None, batch_size):
            changed.append(f"batches have {plural(batch_size, 'row')} (--batch-size), not {self.batch_size}")
        if self.batches is not None:
            changed.append(f"batches are those of its {sampler}, whatever --batch-size says")
        if self.is_shuffled:
            changed.append("it is shuffled by --seed")
        elif sampler != "SequentialSampler":
            changed.append(f"what its {sampler} draws begins each epoch by --seed")
        if self._loader.num_workers:
            changed.append("num_workers is not used")
        return f"the DataLoader: {', '.join(changed)}" if changed else ""

    def _draws(self, sampler: Any, seed: int, epoch: int) -> list[Any]:
        """What a sampler gives in an epoch: as many as in the first one."""
        key = (seed, epoch)
        if key not in self._drawn:
            name = type(sampler).__name__
            with as_config_error(f"{self.what}: the {name} of its loader"):
                found = self._drawn_anew(sampler, seed, epoch)
            first = found if epoch == 0 else self._draws(sampler, seed, 0)
            if len(found) != len(first):
                raise ConfigError(
                    f"{self.what}: the {name} of its loader gives {len(found)} in epoch {epoch} and "
                    f"{len(first)} in the first: every epoch needs equally many"
                )
            self._drawn = {(seed, 0): first, key: found}
        return self._drawn[key]

    def _drawn_anew(self, sampler: Any, seed: int, epoch: int) -> list[Any]:
        with kept_globals(), self._seeded(generator(seed, f"loader, epoch {epoch}").initial_seed()):
            for each in (sampler, self.sampler):
                if hasattr(each, "set_epoch"):
                    each.set_epoch(epoch)
            samples = len(self._loader.dataset)  # type: ignore[arg-type] # one with indices
            most = max(MOST_DRAWN * samples, length_hint(sampler))
            name = f"{self.what}: the {type(sampler).__name__} of its loader"
            found = [each if sampler is self.sampler else [*each] for each in islice(sampler, most + 1)]
        if len(found) > most:
            raise ConfigError(f"{name} gives more than {most} in an epoch, which must have an end")
        numbers = found if sampler is self.sampler else chain.from_iterable(found)
        if any(not hasattr(each, "__index__") for each in numbers):
            raise ConfigError(f"{name} gives other things than the whole numbers of samples")
        return found

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """The global generators and those of the samplers begin with the seed; the latter are restored."""
        own = [getattr(each, "generator", None) for each in (self.batches, self.sampler)]
        generators = [each for each in own if isinstance(each, torch.Generator)]
        before = [each.get_state() for each in generators]
        seed_globals(seed)
        for each in generators:
            each.manual_seed(seed)
        try:
            yield
        finally:
            for each, state in zip(generators, before, strict=True):
                each.set_state(state)
