"""User samples: the inputs and targets in what a user's data set, loader, batches or tensors hold.

(input, target)         where the input is a tuple, its items are the model's positional arguments
{"x": ..., "label": ...}  the target, and for each argument of the forward of that name its value, the
                        target's too
input                   a tensor without a target
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from dpexp import tensors
from dpexp.config.errors import ConfigError, as_config_error, available
from dpexp.data.loader_order import LoaderOrder

TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a sample that is a dict under which its target is looked for."""


class Rows:
    """The rows of a pytree of tensors, as a map-style data set."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(next(tensors.walk(self.values)))

    def __getitem__(self, index: int) -> Any:
        return tensors.map_tensors(lambda tensor: tensor[index], self.values)


def of_batches(batches: Sequence[Any]) -> Rows:
    """The samples of a list of batches, their tensors joined by key.

    Raises ConfigError for batches of different keys, and for rows that differ in number or shape.
    """
    if not batches:
        raise ConfigError("data: the list has no batch")
    by_path = [dict(tensors.leaves(batch)) for batch in batches]
    for number, found in enumerate(by_path):
        _check_batch(number, found, by_path[0])
    joined = {}
    for path in by_path[0]:
        try:
            joined[path] = torch.cat([found[path] for found in by_path])
        except RuntimeError as error:
            raise ConfigError(f"data: the batches cannot be joined, row by row: {error}") from error
    columns = iter(joined.values())
    return Rows(tensors.map_tensors(lambda _: next(columns), batches[0]))


def _check_batch(number: int, found: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raises ConfigError for a batch that the first one, {path: leaf}, cannot be joined with."""
    for path, leaf in found.items():
        if not isinstance(leaf, Tensor):
            at = f" at {path}" if path else ""
            raise ConfigError(f"data: batch {number} holds a {type(leaf).__name__}{at}, not a tensor")
    if shapes := _unequal_rows(found.values()):
        raise ConfigError(
            f"data: batch {number} has tensors of the shapes {shapes}. A list "
            "holds batches, with equally many rows in dimension 0 of each tensor; give single samples as a "
            "torch.utils.data.Dataset"
        )
    if found.keys() != first.keys():
        here, there = (", ".join(each) or "a tensor" for each in (found, first))
        raise ConfigError(
            f"data: batch {number} has {here}, and batch 0 has {there}: every batch needs the same entries"
        )


def _unequal_rows(found: Iterable[Tensor]) -> str:
    """The shapes of the tensors, unless all have equally many rows in dimension 0."""
    shapes = [tuple(tensor.shape) for tensor in found]
    is_equal = len({shape[:1] for shape in shapes}) == 1 and () not in shapes
    return "" if is_equal else ", ".join(map(str, shapes)) or "none"


def rows_of_batch(data: Any) -> int | None:
    """The rows of a batch of a loader, or of a list's first batch; None where the data has no batches.

    Of two loaders, one to train and one to test on, it is the first that counts.
    """
    if isinstance(data, tuple) and data and isinstance(data[0], DataLoader):
        return rows_of_batch(data[0])
    if isinstance(data, DataLoader):
        batches = data.batch_sampler
        return batches.batch_size if type(batches) is BatchSampler else data.batch_size
    first = next(tensors.walk(data[0]), None) if isinstance(data, list) and data else None
    return len(first) if first is not None and first.dim() else None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def is_arrays(value: Any) -> bool:
    """Whether it is tensors or arrays with the samples in dimension 0.

    x    (x, y)    ((x, z), y)    {"x": x, "label": y}
    """
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(key, str) and _is_array(value[key]) for key in value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and value[0]:
        value = (*value[0], value[1])
    elif isinstance(value, tuple) and len(value) > 2:
        return False
    return all(map(_is_array, value if isinstance(value, tuple) else (value,)))


def train_and_test(value: Any, what: str) -> tuple[Any, Any | None]:
    """What to train and to test on: a tuple of two, unless it is (inputs, target).

    Raises ConfigError for a tuple that may be read as either; ``what`` starts the message.
    """
    if not isinstance(value, tuple) or len(value) != 2 or is_arrays(value):
        return value, None
    if any(map(_is_array, value)):
        kinds = ", ".join(type(each).__name__ for each in value)
        raise ConfigError(
            f"{what} gives a tuple ({kinds}), which may be (inputs, target) or (data to train on, data to "
            "test on): give inputs and target as tensors (x, y) or ((x, z), y), and data to train and to "
            "test on as two data sets, or ((x, y), (x, y))"
        )
    return value


@dataclass(frozen=True)
class MapStyle:
    """A map-style data set, the function that joins its samples to a batch, and the order of its loader."""

    dataset: Any
    collate: Callable[[list[Any]], Any] = default_collate
    order: LoaderOrder | None = None

    @property
    def first(self) -> Any:
        """The first sample, or the batch that a ``collate_fn`` makes of it."""
        sample = self.dataset[0]
        return sample if self.collate is default_collate else self.collate([sample])


def map_style(value: Any, what: str) -> MapStyle:
    """What a loader, or arrays, hold as a map-style data set; other things as they are.

    Raises ConfigError for tensors whose rows differ in number, for a loader without batches, and for things
    that only look like a data set; ``what`` starts the message.
    """
    if isinstance(value, DataLoader):
        is_stream = isinstance(value.dataset, IterableDataset)  # which is refused as such
        order = None if is_stream else LoaderOrder(value, what)
        return MapStyle(value.dataset, value.collate_fn, order)
    if is_arrays(value):
        with as_config_error(f"{what}: making tensors of its arrays"):
            return MapStyle(Rows(_columns(value, what)))
    if hasattr(value, "to_numpy"):
        raise ConfigError(
            f"{what} gives a {type(value).__name__}, which is not a data set of samples: give tensors "
            "(x, y), such as torch.tensor(frame.to_numpy())"
        )
    if isinstance(value, tuple) and len(value) > 2 and all(map(_is_array, value)):
        raise ConfigError(
            f"{what} gives a tuple of {len(value)} tensors, and which of them are inputs is not clear: give "
            "((x, z), y) for two inputs and a target, a dict of tensors, or a list of samples"
        )
    return MapStyle(value)


def _columns(value: Any, what: str) -> Any:
    """The tensors of a pytree of tensors and arrays, which all have equally many rows."""
    if isinstance(value, tuple):
        columns: Any = tuple(_columns(each, what) for each in value)
    elif isinstance(value, Mapping):
        columns = {key: torch.as_tensor(each) for key, each in value.items()}
    else:
        columns = torch.as_tensor(value)
    if shapes := _unequal_rows(tensors.walk(columns)):
        raise ConfigError(
            f"{what} gives tensors of the shapes {shapes}: "
            "each must have the samples in dimension 0, equally many"
        )
    return columns


def problem(sample: Any) -> str:
    """What is wrong with the form of a sample; empty if it has one of the three."""
    if isinstance(sample, list | tuple):
        found = "" if len(sample) in (1, 2) else f"{type(sample).__name__} of {len(sample)}"
    else:
        found = "" if isinstance(sample, Mapping | Tensor | np.ndarray) else type(sample).__name__
    needed = "it must be a pair (input, target), a dict of arguments of the model, or a tensor"
    return f"is a {found}; {needed}" if found else ""


def forward_signature(model: nn.Module) -> inspect.Signature | None:
    """The signature of the model's forward; None where Python does not know it."""
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a built-in function
        return None


def split(sample: Any, forward: inspect.Signature | None = None) -> tuple[tuple[Any, ...], Any]:
    """(positional arguments of the model, target or None) of a sample, or of a batch of samples.

    Raises ConfigError for a dict with a key that is neither an argument of the model nor a target.
    """
    if isinstance(sample, Mapping):
        return _split_mapping(sample, forward)
    pair = (*sample, None)[:2] if isinstance(sample, list | tuple) else (sample, None)
    inputs, target = pair
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), target


def _split_mapping(
    sample: Mapping[str, Any], forward: inspect.Signature | None
) -> tuple[tuple[Any, ...], Any]:
    key = next((name for name in TARGETS if name in sample), None)
    named = {name: value for name, value in sample.items() if name != key}
    target = None if key is None else sample[key]
    if forward is None:
        return tuple(named.values()), target
    positional = [each for each in forward.parameters.values() if each.kind <= each.POSITIONAL_OR_KEYWORD]
    names = [each.name for each in positional]
    if not named and key not in names:
        raise ConfigError(f"a sample has {key or 'nothing'} alone, the target, and no input")
    takes_target = key in names and names[0] != key  # a forward that computes its loss
    if len(named) == 1 and not takes_target:
        return tuple(named.values()), target
    if len(names) == 1 and not set(names) & set(named):
        return (named,), target  # the forward takes the dict
    if len(named) == 1 and not set(names) & set(named):
        named = dict(zip(names, named.values(), strict=False))
    if key is not None and takes_target:
        named[key] = target
    return _arguments(named, positional), target


def _arguments(named: Mapping[str, Any], positional: Sequence[inspect.Parameter]) -> tuple[Any, ...]:
    """The positional arguments up to the last one that is named, with the defaults of the others."""
    names = [each.name for each in positional]
    for name in named:
        if name not in names:
            raise ConfigError(
                f"a sample has '{name}', which is not an argument of the model's forward; "
                f"{available(names)}. The target is looked for as {', '.join(TARGETS)}"
            )
    used = positional[: max(names.index(name) for name in named) + 1]
    missing = [each.name for each in used if each.default is each.empty and each.name not in named]
    if missing:
        raise ConfigError(
            f"the model's forward needs {', '.join(missing)}, and a sample has {', '.join(named)}"
        )
    return tuple(named.get(each.name, each.default) for each in used)
