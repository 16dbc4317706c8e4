"""User data: ``--data package.module:factory``, a map-style dataset of (input, target)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, default_collate

from dpexp import tensors
from dpexp.config import ConfigError, spec
from dpexp.config.errors import as_config_error
from dpexp.config.features import Features
from dpexp.data.base import Source, kind_of
from dpexp.data.dataset import Dataset

MAX_SAMPLES = 10**12
"""An epoch of more would last for years; an endless data set may return any length up to this."""
DIGESTED = 10_000
"""The digest is computed over at most so many samples, evenly spaced."""


class UserSource(Source):
    """What the factory returns: a map-style dataset, or a tuple of one to train and one to test on.

    A sample is ``(input, target)``; where the input is a tuple, its items are the model's positional
    arguments. If it has an attribute ``features`` (a ``dpexp.data.Features``), models are built for that.
    """

    def __init__(self, parsed: spec.Spec, where: str) -> None:
        super().__init__(where)
        self.name = parsed.factory
        returned = spec.call(spec.load(parsed, where), parsed, where)
        parts = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        self.train = self._checked(parts[0])
        self.test = self._checked(parts[1]) if parts[1] is not None else None
        self.features = _features(self.train)

    def dataset(self, model: nn.Module, seed: int) -> UserDataset:
        def part(name: str, dataset: Any, test: Dataset | None) -> UserDataset:
            return UserDataset(name, f"{name}: {len(dataset)} samples", self.objective(model), test, dataset)

        held_out = part(self.name + " (test)", self.test, None) if self.test is not None else None
        return part(self.name, self.train, held_out)

    def _checked(self, dataset: Any) -> Any:
        is_map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset) or not is_map_style:
            raise ConfigError(
                f"{self.where}: {self.name} returned a {type(dataset).__name__}; it must return a map-style "
                "dataset, with __len__ and __getitem__, or a tuple of two: to train and to test"
            )
        with as_config_error(f"{self.where}: len of {self.name}"):
            samples = len(dataset)
        if samples == 0:
            raise ConfigError(f"{self.where}: the dataset of {self.name} is empty")
        if samples > MAX_SAMPLES:
            raise ConfigError(
                f"{self.where}: the dataset of {self.name} has {samples} samples, and a run can take at most "
                f"{MAX_SAMPLES}: let __len__ return how many samples an epoch has"
            )
        with as_config_error(f"{self.where}: sample 0 of {self.name}"):
            sample = dataset[0]
        if not isinstance(sample, list | tuple) or len(sample) != 2:
            raise ConfigError(
                f"{self.where}: sample 0 of {self.name} is a {type(sample).__name__}; "
                "it must be a pair (input, target)"
            )
        return dataset


def _features(dataset: Any) -> Features | None:
    """The dataset's attribute ``features``, or else those of its first sample."""
    given = getattr(dataset, "features", None)
    if isinstance(given, Features):
        return given
    inputs, target = dataset[0]
    if not isinstance(inputs, Tensor):
        return None
    kind = kind_of(inputs.unsqueeze(0))
    if kind is None:
        return None
    is_regression = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 1
    return Features(kind, tuple(inputs.shape), targets=len(target) if is_regression else None)


@dataclass(eq=False, repr=False)
class UserDataset(Dataset):
    """The samples of the user's map-style dataset, fetched when needed and joined by ``default_collate``."""

    dataset: Any
    dtype: torch.dtype | None = None

    @cached_property
    def samples(self) -> int:
        return len(self.dataset)

    def fetch(self, indices: Tensor | slice) -> tuple[tuple[Any, ...], Any]:
        if isinstance(indices, slice):
            indices = torch.arange(indices.start, indices.stop)
        inputs, targets = self._collate(indices.tolist())
        inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        return (inputs, targets) if self.dtype is None else tensors.cast((inputs, targets), self.dtype)

    def digest_input(self) -> Iterator[Tensor]:
        step = max(1, -(-self.samples // DIGESTED))
        yield torch.tensor([self.samples, step])
        for index in range(0, self.samples, step):
            yield from tensors.walk(self._collate([index]), sort_keys=True)

    def _collate(self, indices: Sequence[int]) -> Any:
        """The samples as one batch. Raises ConfigError where one cannot be fetched or joined to others."""
        samples = []
        for index in indices:
            with as_config_error(f"--data {self.name}: sample {index}"):
                samples.append(self.dataset[index])
        with as_config_error(
            f"--data {self.name}: joining {len(samples)} samples, which must have equal shapes,"
        ):
            return default_collate(samples)

    def to(self, dtype: torch.dtype) -> UserDataset:
        return dataclasses.replace(self, dtype=dtype, test=self.test and self.test.to(dtype))
