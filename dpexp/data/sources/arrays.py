"""Arrays: x and y of a NumPy archive, checked before a model is built for them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpexp.config.errors import ConfigError, no_file
from dpexp.config.features import Features
from dpexp.config.ranges import plural
from dpexp.data.base import Samples, TensorSource, kind_of

Array = np.ndarray[Any, np.dtype[Any]]


class ArraysSource(TensorSource):
    """``arrays:FILE.npz``, as ``numpy.savez(file, x=x, y=y)`` writes it.

    Integer y are classes, floating-point y a regression. Integer x of one or two dimensions are
    ids; all other x are values: ``(n, width)`` vectors, ``(n, length, width)`` sequences, ``(n,
    channels, height, width)`` images. ``x_test`` and ``y_test``, if the archive has them, are held out.
    """

    name = "arrays"

    def __init__(self, where: str, argument: str) -> None:
        super().__init__(where)
        self.path = Path(argument).expanduser()
        arrays = self._read()
        self.train = self._pair(arrays, "x", "y")
        self.test = self._pair(arrays, "x_test", "y_test") if {"x_test", "y_test"} & set(arrays) else None
        self.features = self._features()

    def load(self, seed: int) -> tuple[str, Samples, Samples | None]:
        (inputs,), _ = self.train
        description = f"{self.path.name}: {plural(len(inputs), 'sample')}, x {tuple(inputs.shape[1:])}"
        return description, self.train, self.test

    def _read(self) -> dict[str, Array]:
        if not self.path.exists():
            raise ConfigError(f"{self.where}: {no_file(self.path)}")
        if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise ConfigError(f"{self.where}: {self.path} is not a regular file")
        try:
            with open(self.path, "rb") as file:  # closed whatever numpy raises
                archive = np.load(file, allow_pickle=False)
                arrays = None if isinstance(archive, np.ndarray) else dict(archive.items())
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{self.where}: {self.path} is not a readable .npz archive: {error}") from error
        if arrays is None:
            raise ConfigError(f"{self.where}: {self.path} holds one array; write x, y with numpy.savez")
        return arrays

    def _pair(self, arrays: dict[str, Array], x: str, y: str) -> Samples:
        for key in (x, y):
            if key not in arrays:
                found = ", ".join(arrays) or "no arrays"
                raise ConfigError(f"{self.where}: {self.path} has no '{key}'; it has {found}")
        inputs, targets = self._tensor(x, arrays[x]), self._tensor(y, arrays[y])
        if len(inputs) != len(targets):
            raise ConfigError(
                f"{self.where}: {x} has {plural(len(inputs), 'sample')} and {y} has {len(targets)} "
                f"in {self.path}"
            )
        inputs = inputs.float() if inputs.dim() > 2 else inputs
        for key, values, meaning in ((x, inputs, "ids"), (y, targets, "classes")):
            if not values.is_floating_point() and int(values.min()) < 0:
                raise ConfigError(
                    f"{self.where}: {key} in {self.path} holds {int(values.min())}; integers are {meaning} "
                    "and start at 0: store other values as floating point"
                )
        return (inputs,), targets

    def _tensor(self, key: str, array: Array) -> Tensor:
        """Floating point as float32, ``(n,)`` of them as ``(n, 1)``; everything else as int64."""
        where = f"{self.where}: {key} in {self.path}"
        if array.dtype.kind not in "fiub":
            raise ConfigError(f"{where} has type {array.dtype}; it must hold integers or floating point")
        if array.ndim == 0 or array.size == 0:
            raise ConfigError(f"{where} is empty: its shape is {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ConfigError(f"{where} holds {array[index]} at {list(index)}; every value must be finite")
        if array.dtype.kind != "f":
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
        values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        return values.unsqueeze(1) if values.dim() == 1 else values

    def _features(self) -> Features:
        (inputs,), targets = self.train
        kind = kind_of(inputs)
        if kind is None:
            raise ConfigError(
                f"{self.where}: x in {self.path} has shape {tuple(inputs.shape)}; it must be vectors "
                "(n, width), sequences (n, length, width) or images (n, channels, height, width)"
            )
        test_inputs, test_targets = self.test or ((), None)
        is_regression = targets.is_floating_point()
        return Features(
            kind,
            tuple(inputs.shape[1:]),
            classes=None if is_regression else _count(targets, test_targets),
            targets=targets.shape[-1] if is_regression else None,
            vocabulary=_count(inputs, *test_inputs) if kind == "ids" else None,
            stepwise=targets.dim() > (2 if is_regression else 1),
        )


def _count(*parts: Tensor | None) -> int:
    """One more than the largest integer."""
    return 1 + max(int(part.max()) for part in parts if part is not None)
