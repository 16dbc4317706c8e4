"""User data: what ``--data FILE.py:NAME`` or ``dpexp.run(data=...)`` gives, as the batches of each epoch.

tensors, a map-style data set      samples, in batches of --batch-size, shuffled by --seed
a DataLoader, an iterable          its own batches, as it gives them
a tuple of two of these            data to train on and data to test on
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, default_collate

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.config.factories import Factory
from dpexp.config.features import Features
from dpexp.config.words import plural
from dpexp.data.dataset import Dataset, Epochs, Samples, unequal_rows
from dpexp.data.losses import NO_TARGETS
from dpexp.data.sources import Source
from dpexp.data.stream import Stream
from dpexp.data.user_batch import as_batch, forward_signature

_FLOATS, _INTEGERS = {2: "vector", 3: "sequence", 4: "image"}, {1: "ids", 2: "ids"}
"""The kinds of inputs (see ``Features``) by their dimensions."""


class UserSource(Source):
    """What the name stands for, or what that returns.

    If the data has an attribute ``features`` (a ``dpexp.config.features.Features``), models are built for
    that, else for the first sample.
    """

    def __init__(self, factory: Factory) -> None:
        super().__init__(factory.where)
        self.name, data, make = factory.target, factory.load(), None
        if callable(data):
            make = partial(factory.call, data)
            data = make()
        else:
            factory.check_no_options(data)
        what = f"{self.where}: {self.name}"
        parts = data if _is_train_and_test(data, what) else (data,)
        self.parts = [_epochs(part, make if part is data else None, what) for part in parts]
        self.first = as_batch(next(self.parts[0].batches(1, 0, 0, False)), what=what)
        given = getattr(getattr(parts[0], "dataset", parts[0]), "features", None)
        self.features = given if isinstance(given, Features) else self._features()

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """The parts, whose batches the model's forward takes. Raises ConfigError for an epoch without end."""
        forward = forward_signature(model)
        parts = [replace(each, forward=forward) if isinstance(each, Stream) else each for each in self.parts]
        samples = [each.samples for each in parts]
        note = NO_TARGETS if self.first.targets is None else ""
        test = parts[1] if len(parts) == 2 else None
        description = f"{self.name}: {plural(samples[0], 'sample')}"
        return self.of_parts(model, description, parts[0], test, note)

    def _features(self) -> Features | None:
        """Those of a sample, where it has one input of a known kind."""
        inputs, targets = self.first.inputs, self.first.targets
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            return None
        kinds = _FLOATS if inputs[0].is_floating_point() else _INTEGERS
        is_regression = isinstance(targets, Tensor) and targets.is_floating_point() and targets.dim() == 2
        values, kind = targets.shape[1] if is_regression else None, kinds.get(inputs[0].dim())
        return None if kind is None else Features(kind, tuple(inputs[0].shape[1:]), targets=values)


class OwnBatches:
    """A list of batches, each a copy every time: a model may write to its inputs. Raises ConfigError."""

    def __init__(self, batches: list[Any]) -> None:
        if not batches:
            raise ConfigError("a list of batches that is given as data or validation is empty")
        if _is_a_sample(batches[0]):
            raise ConfigError(
                f"data: batch 0 has tensors of the shapes {unequal_rows(batches[0])}. A list holds batches, "
                "with the rows in dimension 0 of inputs and targets; give single samples as a "
                "torch.utils.data.Dataset"
            )
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (tensors.map_tensors(torch.clone, each) for each in self._batches)


def _is_a_sample(values: Any) -> bool:
    """Whether it is an input and a target of which none has the rows of the other."""
    batch = as_batch(values, what="data")
    shapes = {each.shape[:1] for each in tensors.walk(batch.inputs)}
    target = next(tensors.walk(batch.targets), None)
    return bool(shapes) and target is not None and target.shape[:1] not in shapes and not batch.has_structure


def _epochs(value: Any, make: Callable[[], Any] | None, what: str) -> Epochs:
    if _is_arrays(value):
        return Samples.of(_tensors(value), what)
    if isinstance(value, Iterator) and make is not None:
        return Stream(make, what)
    is_other = isinstance(value, IterableDataset | Iterator | tuple | Mapping | str)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__") and not is_other:
        if not len(value):
            raise ConfigError(f"{what} is empty")
        return Samples(len(value), partial(_collated, value), draws=True)
    if isinstance(value, Iterable) and not is_other:
        return Stream(lambda: value, what)
    kind = type(value).__name__
    if isinstance(value, Iterator):
        text = "which can be iterated over only once: give the function that makes it"
        raise ConfigError(f"{what} gives a {kind}, {text}")
    if isinstance(value, IterableDataset):
        raise ConfigError(
            f"{what} gives a {kind}, of single samples: give a DataLoader of it, with a batch size"
        )
    raise ConfigError(
        f"{what} gives a {kind}; it must give tensors (x, y), ((x, z), y) for two inputs, a dict of tensors, "
        "a data set with __len__ and __getitem__, a DataLoader, an iterable of batches, or a tuple of two: "
        "to train and to test"
    )


def _collated(dataset: Any, numbers: Tensor) -> Any:
    return default_collate([dataset[number] for number in numbers.tolist()])


def _is_train_and_test(value: Any, what: str) -> bool:
    """Whether it is data to train and to test on. Raises ConfigError where it may be (inputs, target)."""
    if not isinstance(value, tuple) or len(value) != 2 or _is_arrays(value):
        return False
    if any(isinstance(each, Tensor | np.ndarray) for each in value):
        kinds = ", ".join(type(each).__name__ for each in value)
        raise ConfigError(
            f"{what} gives a tuple ({kinds}), which may be (inputs, target) or (data to train on, data to "
            "test on): give inputs and target as tensors (x, y) or ((x, z), y), and data to train and to "
            "test on as two data sets, or ((x, y), (x, y))"
        )
    return True


def _is_arrays(value: Any) -> bool:
    """Whether it is tensors or arrays: ``x``, ``(x, y)``, ``((x, z), y)`` or ``{"x": x, "label": y}``."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple):
        value = (*value[0], value[1])
    elif isinstance(value, tuple) and len(value) > 2:
        return False
    entries = value if isinstance(value, tuple) else (value,)
    return bool(entries) and all(isinstance(each, Tensor | np.ndarray) for each in entries)


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    if isinstance(value, Mapping):
        return {key: torch.as_tensor(each) for key, each in value.items()}
    return torch.as_tensor(value)
