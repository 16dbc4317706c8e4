"""User data: ``--data package.module:name``, a map-style dataset, a loader or tensors, or what makes one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, default_collate

from dpexp import tensors
from dpexp.config.errors import ConfigError, as_config_error, plural
from dpexp.config.factories import Factory
from dpexp.config.features import Features
from dpexp.data.base import Source, kind_of
from dpexp.data.dataset import Dataset
from dpexp.data.user_samples import (
    MapStyle,
    forward_signature,
    map_style,
    problem,
    split,
    train_and_test,
)

DIGESTED = 10_000
"""The digest is computed over at most so many samples, evenly spaced."""


class UserSource(Source):
    """A map-style dataset, a loader, tensors ``(x, y)`` or ``((x, z), y)``, or two of these.

    Two are one to train and one to test on. It is what the name stands for, or what that returns.
    ``user_samples`` has the forms of a sample. If a data set has an attribute ``features`` (a
    ``dpexp.config.features.Features``), models are built for that.
    """

    def __init__(self, factory: Factory) -> None:
        super().__init__(factory.where)
        self.name = factory.target
        found = factory.load(objects=True)
        if callable(found):
            found = factory.call(found)
        else:
            factory.check_no_options(found)
        what = f"{self.where}: {self.name}"
        train, test = train_and_test(found, what)
        self.train = map_style(train, what)
        self.test = map_style(test, what) if test is not None else None
        for part in filter(None, (self.train, self.test)):
            self._check(part)
        self.features = _features(self.train.dataset)

    def dataset(self, model: nn.Module, seed: int) -> UserDataset:
        def part(name: str, of: MapStyle, test: Dataset | None) -> UserDataset:
            description = f"{name}: {plural(len(of.dataset), 'sample')}"
            return UserDataset(name, description, objective, test, of, forward)

        objective, forward = self.objective(model), forward_signature(model)
        if split(self.train.first)[1] is None:
            self.note = objective.without_targets
        held_out = part(self.name + " (test)", self.test, None) if self.test is not None else None
        return part(self.name, self.train, held_out)

    def _check(self, part: MapStyle) -> None:
        dataset = part.dataset
        is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset) or not is_map_style:
            raise ConfigError(
                f"{self.where}: {self.name} gives a {type(dataset).__name__}; it must give a map-style "
                "dataset, with __len__ and __getitem__, a DataLoader of one, tensors (x, y), or a tuple of "
                "two: to train and to test"
            )
        with as_config_error(f"{self.where}: len of {self.name}"):
            samples = len(dataset)
        if samples == 0:
            raise ConfigError(f"{self.where}: the dataset of {self.name} is empty")
        with as_config_error(f"{self.where}: sample 0 of {self.name}"):
            sample = part.first
        if wrong := problem(sample):
            joined = ", as its collate_fn returns it," if part.collate is not default_collate else ""
            raise ConfigError(f"{self.where}: sample 0 of {self.name}{joined} {wrong}")


def _features(dataset: Any) -> Features | None:
    """The dataset's attribute ``features``, or else those of its first sample."""
    given = getattr(dataset, "features", None)
    if isinstance(given, Features):
        return given
    found, target = split(dataset[0])
    if len(found) != 1 or not isinstance(found[0], Tensor):
        return None
    (inputs,) = found
    kind = kind_of(inputs.unsqueeze(0))
    if kind is None:
        return None
    is_regression = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 1
    return Features(kind, tuple(inputs.shape), targets=len(target) if is_regression else None)


@dataclass(eq=False, repr=False)
class UserDataset(Dataset):
    """The samples of the user's map-style dataset, fetched when needed, in the order of its loader."""

    of: MapStyle
    forward: inspect.Signature | None
    dtype: torch.dtype | None = None

    @cached_property
    def samples(self) -> int:
        return len(self.of.dataset)

    def batch_rows(self, batch_size: int, seed: int) -> dict[int, int]:
        if self.of.order is None:
            return super().batch_rows(batch_size, seed)
        return self.of.order.batch_rows(self.samples, batch_size, seed)

    def drawn(self, seed: int) -> str:
        return self.of.order.drawn(seed) if self.of.order is not None else ""

    @property
    def has_own_batches(self) -> bool:
        return self.of.order is not None and self.of.order.batches is not None

    def note(self, batch_size: int) -> str:
        return self.of.order.note(batch_size) if self.of.order is not None else ""

    def batch_indices(
        self, batch_size: int, seed: int, epoch: int, *, first: int, shuffle: bool
    ) -> Iterator[Tensor]:
        order = self.of.order
        if order is None:
            return super().batch_indices(batch_size, seed, epoch, first=first, shuffle=shuffle)
        return map(
            torch.as_tensor,
            order.of_epoch(self.samples, batch_size, seed, epoch, first=first, shuffle=shuffle),
        )

    def fetch(self, indices: Tensor) -> tuple[tuple[Any, ...], Any]:
        inputs, targets = split(self._collate(indices.tolist()), self.forward)
        return (inputs, targets) if self.dtype is None else tensors.cast((inputs, targets), self.dtype)

    def digest_input(self) -> Iterator[Tensor]:
        step = max(1, -(-self.samples // DIGESTED))
        yield torch.tensor([self.samples, step])
        for index in range(0, self.samples, step):
            yield from tensors.walk(self._collate([index]))

    def _collate(self, indices: Sequence[int]) -> Any:
        """The samples as one batch. Raises ConfigError where one cannot be fetched or joined to others."""
        samples = []
        for index in indices:
            with as_config_error(f"--data {self.name}: sample {index}"):
                samples.append(self.of.dataset[index])
        with as_config_error(
            f"--data {self.name}: joining {plural(len(samples), 'sample')}, which must have equal shapes,"
        ):
            return self.of.collate(samples)

    def to(self, dtype: torch.dtype) -> UserDataset:
        return dataclasses.replace(self, dtype=dtype, test=self.test and self.test.to(dtype))
