"""A dataset of one's own: ``--data package.module:factory``, a map-style Dataset of (input, target)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpexp import tensors
from dpexp.config import ConfigError, spec
from dpexp.config.features import Features
from dpexp.config.user_errors import as_config_error
from dpexp.data.base import Source
from dpexp.data.dataset import Batch, Dataset
from dpexp.data.objective import Objective

DIGESTED = 10_000
"""Samples that enter the digest at most: evenly spaced, when there are more."""


class UserSource(Source):
    """What the factory returns: a map-style dataset, or a tuple of one to train and one to test on.

    A sample is ``(input, target)``; where the input is a tuple, its items are the model's positional
    arguments. An attribute ``features`` (a ``dpexp.data.Features``) lets models be fitted to it.
    """

    def __init__(self, parsed: spec.Spec, where: str) -> None:
        super().__init__(where)
        self.name = parsed.factory
        made = spec.call(spec.load(parsed, where), parsed, where)
        parts = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        self.train = self._checked(parts[0])
        self.test = self._checked(parts[1]) if parts[1] is not None else None
        self.features = self._described()

    def dataset(self, model: nn.Module, seed: int) -> UserDataset:
        objective = self.objective(model, self.features)
        test = None
        if self.test is not None:
            test = UserDataset(self.name + " (test)", self.test, self.features, objective)
        return UserDataset(self.name, self.train, self.features, objective, test)

    def _checked(self, made: Any) -> Any:
        if isinstance(made, torch.utils.data.IterableDataset) or not (
            hasattr(made, "__len__") and hasattr(made, "__getitem__")
        ):
            raise ConfigError(
                f"{self.where}: {self.name} returned a {type(made).__name__}; it must return a map-style "
                "dataset, with __len__ and __getitem__, or a tuple of two: to train and to test"
            )
        with as_config_error(f"{self.where}: len of {self.name}"):
            samples = len(made)
        if samples == 0:
            raise ConfigError(f"{self.where}: the dataset of {self.name} is empty")
        with as_config_error(f"{self.where}: sample 0 of {self.name}"):
            first = made[0]
        if not isinstance(first, list | tuple) or len(first) != 2:
            raise ConfigError(
                f"{self.where}: sample 0 of {self.name} is a {type(first).__name__}; "
                "it must be a pair (input, target)"
            )
        return made

    def _described(self) -> Features | None:
        """What the dataset says of itself, else what its first sample shows."""
        said = getattr(self.train, "features", None)
        if isinstance(said, Features):
            return said
        inputs, target = self.train[0]
        if not isinstance(inputs, Tensor):
            return None
        kinds = {0: "ids", 1: "ids"}
        if inputs.is_floating_point():
            kinds = {1: "vector", 2: "sequence", 3: "image"}
        if inputs.dim() not in kinds:
            return None
        regression = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 1
        return Features(kinds[inputs.dim()], tuple(inputs.shape), targets=len(target) if regression else None)


class UserDataset(Dataset):
    """Samples fetched one by one as they are needed, and collated by ``default_collate``."""

    def __init__(
        self,
        name: str,
        held: Any,
        features: Features | None,
        objective: Objective,
        test: Dataset | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(name, len(held), f"{name}: {len(held)} samples", features, objective, test)
        self.held = held
        self.dtype = dtype

    def take(self, rows: Tensor | slice) -> Batch:
        indices = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        inputs, targets = self._joined(indices)
        inputs = inputs if isinstance(inputs, list | tuple) else [inputs]
        if self.dtype is not None:
            inputs, targets = tensors.cast((inputs, targets), self.dtype)
        return Batch(tuple(inputs), targets, len(indices))

    def content(self) -> Iterator[Tensor]:
        step = max(1, -(-self.samples // DIGESTED))
        yield torch.tensor([self.samples, step])
        for index in range(0, self.samples, step):
            yield from tensors.walk(self._joined([index]), sort_keys=True)

    def _joined(self, indices: Sequence[int]) -> Any:
        """The samples as a batch. Raises ConfigError where one cannot be had or not be joined to others."""
        samples = []
        for index in indices:
            with as_config_error(f"--data {self.name}: sample {index}"):
                samples.append(self.held[index])
        with as_config_error(
            f"--data {self.name}: joining {len(samples)} samples, which must have equal shapes,"
        ):
            return default_collate(samples)

    def to(self, dtype: torch.dtype) -> UserDataset:
        test = self.test.to(dtype) if self.test is not None else None
        return UserDataset(self.name, self.held, self.features, self.objective, test, dtype)
