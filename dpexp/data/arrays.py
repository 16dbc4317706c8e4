"""Arrays: x and y of a NumPy archive, checked before anything is built on them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import TensorDataset

Array = np.ndarray[Any, np.dtype[Any]]


class ArraysSource(Source):
    """``arrays:FILE.npz``, as ``numpy.savez(file, x=x, y=y)`` writes it.

    Integer y are classes, floating-point y a regression. Integer x of one or two dimensions are
    ids; every other x are values: ``(n, width)`` vectors, ``(n, length, width)`` sequences, ``(n,
    channels, height, width)`` images. ``x_test`` and ``y_test``, where they are there, are held out.
    """

    def __init__(self, where: str, argument: str) -> None:
        super().__init__(where)
        self.path = Path(argument).expanduser()
        held = self._read()
        self.train = self._pair(held, "x", "y")
        self.test = self._pair(held, "x_test", "y_test") if {"x_test", "y_test"} & set(held) else None
        self.features = self._described()

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        assert self.features is not None
        inputs, _ = self.train
        described = f"{self.path.name}: {len(inputs)} samples, x {tuple(inputs.shape[1:])}"
        return self.in_memory("arrays", self.train, self.test, described, self.features, model)

    def _read(self) -> dict[str, Array]:
        if self.path.is_dir():
            raise ConfigError(f"{self.where}: {self.path} is a folder, not an .npz archive")
        if not self.path.is_file():
            raise ConfigError(f"{self.where}: there is no file {self.path}")
        if self.path.stat().st_size == 0:
            raise ConfigError(f"{self.where}: {self.path} is empty")
        try:
            with open(self.path, "rb") as file:  # closed whatever numpy raises
                archive = np.load(file, allow_pickle=False)
                held = {} if isinstance(archive, np.ndarray) else {key: archive[key] for key in archive.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{self.where}: {self.path} is no readable .npz archive: {error}") from error
        if isinstance(archive, np.ndarray):
            raise ConfigError(f"{self.where}: {self.path} holds one array; write x, y with numpy.savez")
        return held

    def _pair(self, held: dict[str, Array], x: str, y: str) -> tuple[Tensor, Tensor]:
        for key in (x, y):
            if key not in held:
                there = ", ".join(held) or "nothing"
                raise ConfigError(f"{self.where}: {self.path} has no '{key}'; there is {there}")
            self._check(key, held[key])
        if len(held[x]) != len(held[y]):
            raise ConfigError(
                f"{self.where}: {x} has {len(held[x])} samples and {y} has {len(held[y])} in {self.path}"
            )
        inputs, targets = _tensor(held[x]), _tensor(held[y])
        if inputs.dim() == 1 and inputs.is_floating_point():
            inputs = inputs.unsqueeze(1)
        if not inputs.is_floating_point() and inputs.dim() > 2:
            inputs = inputs.float()
        for key, values in ((x, inputs), (y, targets)):
            if not values.is_floating_point() and int(values.min()) < 0:
                meaning = "ids" if key == x else "classes"
                raise ConfigError(
                    f"{self.where}: {key} in {self.path} holds {int(values.min())}; integers are {meaning} "
                    "and start at 0: store other values as floating point"
                )
        return inputs, targets.unsqueeze(1) if targets.is_floating_point() and targets.dim() == 1 else targets

    def _check(self, key: str, array: Array) -> None:
        found = f"{self.where}: {key} in {self.path}"
        if array.dtype.kind not in "fiub":
            raise ConfigError(f"{found} has type {array.dtype}; it must hold integers or floating point")
        if array.ndim == 0 or array.size == 0:
            raise ConfigError(f"{found} is empty: its shape is {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ConfigError(f"{found} holds {array[place]} at {list(place)}; every value must be finite")

    def _described(self) -> Features:
        inputs, targets = self.train
        shape = tuple(inputs.shape[1:])
        kinds = {1: "ids", 2: "vector", 3: "sequence", 4: "image"}
        if inputs.dim() not in kinds:
            raise ConfigError(
                f"{self.where}: x in {self.path} has shape {tuple(inputs.shape)}; there are vectors "
                "(n, width), sequences (n, length, width) and images (n, channels, height, width)"
            )
        kind, vocabulary = kinds[inputs.dim()], None
        if not inputs.is_floating_point():
            kind, vocabulary = "ids", self._count(0)
        if targets.is_floating_point():
            width, stepwise = targets.shape[-1], targets.dim() > 2
            return Features(kind, shape, targets=width, vocabulary=vocabulary, stepwise=stepwise)
        stepwise = targets.dim() > 1
        return Features(kind, shape, classes=self._count(1), vocabulary=vocabulary, stepwise=stepwise)

    def _count(self, part: int) -> int:
        """One more than the largest integer in x (0) or y (1), of the training and the test part."""
        return 1 + max(int(held[part].max()) for held in (self.train, self.test) if held is not None)


def _tensor(array: Array) -> Tensor:
    """Floating point as float32, everything else as int64."""
    wanted = np.float32 if array.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=wanted))
