"""Sources: where samples come from. Those of dpexp are random samples, digits, and the bytes of a file.

Digits are 1797 images of 8 x 8 pixels in the scikit-learn package, without a download (E. Alpaydin, C.
Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998: its test part).
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config.errors import ConfigError, as_config_error
from dpexp.config.features import Features
from dpexp.config.words import no_file, plural
from dpexp.data.dataset import Dataset, Epochs, Samples
from dpexp.data.losses import NO_TARGETS
from dpexp.data.objective import Objective
from dpexp.data.rng import generator
from dpexp.data.user_batch import forward_signature

_FIRST = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU, nn.RNN)
"""Layers that say something about their inputs."""
_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "vector": lambda images: images.flatten(1),
    "sequence": lambda images: images.transpose(1, 2).flatten(2),  # of its rows
}
"""Images as a model takes them that has such an ``input_kind``; others take them as they are."""
TRAIN = 1437
"""Images to train on; the other 360 are held out. The split does not depend on the run's seed."""
BYTES = 256


class Source:
    """What ``--data`` names. ``features`` is None where the model decides what the samples are.

    ``where`` starts every error message (``--data text:book.txt``); ``loss`` and ``reduction`` are what the
    options of these names say.
    """

    name: str
    features: Features | None = None
    loss: Callable[..., Any] | None = None
    reduction: str = ""

    def __init__(self, where: str) -> None:
        self.where = where

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """The samples as the model takes them, and its loss. Raises ConfigError; here NotImplementedError."""
        raise NotImplementedError

    def of_parts(
        self, model: nn.Module, description: str, train: Epochs, test: Epochs | None = None, note: str = ""
    ) -> Dataset:
        """The data set of samples to train on, of those that are held out, and of what it had to assume."""
        forward, classes = forward_signature(model), self.features.classes if self.features else None
        objective = Objective.of(model, classes, self.loss, self.reduction)
        held_out = None
        if test is not None:
            held_out = Dataset(f"{self.name} (test)", description, objective, test, forward=forward)
        return Dataset(self.name, description, objective, train, held_out, forward, note=note)


class RandomSource(Source):
    """``random:samples=100,shape=3x32x32``. The same seed and model give the same samples."""

    name = "random"

    def __init__(self, where: str, samples: int = 100, shape: str = "") -> None:
        super().__init__(where)
        if samples < 1:
            raise ConfigError(f"{where}: it needs at least 1 sample")
        self.samples = samples
        self.shape = _parsed(shape, where) if shape else None

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """What the model's ``example`` returns, or inputs alone. Raises ConfigError where both fail."""
        example, name = getattr(model, "example", None), type(model).__name__
        if self.shape is not None or not callable(example):
            return self._without_targets(model, seed)
        with as_config_error(f"{self.where}: {name}.example"):
            inputs, targets = example(self.samples, generator(seed, "random samples"))
            rows = len(targets)
        columns = inputs if isinstance(inputs, tuple) else (inputs,), targets
        description = f"{rows} random samples for {name}, seed {seed}"
        return self.of_parts(model, description, Samples.of(columns, self.where))

    def _without_targets(self, model: nn.Module, seed: int) -> Dataset:
        """Inputs for the model's first layer; ids where that is an embedding."""
        layers = ((name, each) for name, each in model.named_modules() if isinstance(each, _FIRST))
        name, layer = next(layers, ("", None))
        shape = self.shape if self.shape is not None else self._inferred(name, layer)
        rng = generator(seed, "random samples")
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            inputs = torch.randint(layer.num_embeddings, (self.samples, *shape), generator=rng)
            kind = f"ids below {layer.num_embeddings}"
        else:
            inputs, kind = torch.randn(self.samples, *shape, generator=rng), "numbers"
        origin = "" if self.shape is not None else f", as its first layer {name or 'itself'} takes"
        made = f"random {kind} of shape {shape}{origin}"
        description = f"{plural(self.samples, 'sample')}, {made}, seed {seed}"
        samples = Samples.of(((inputs,), None), self.where)
        return self.of_parts(model, description, samples, note=f"{made}; {NO_TARGETS}")

    def _inferred(self, name: str, layer: nn.Module | None) -> tuple[int, ...]:
        if isinstance(layer, nn.Linear) and layer.in_features:
            return (layer.in_features,)
        if isinstance(layer, nn.Embedding):
            return ()
        found = (
            f"its first layer {name or 'itself'} ({type(layer).__name__}) does not say"
            if layer
            else "no layer says"
        )
        raise ConfigError(
            f"{self.where}: {found} which shape a sample has. Give it, as --data random:shape=3x32x32, add a "
            "method example(samples, generator) to the model that returns (inputs, targets), or choose other "
            "data, as --data digits or --data package.module:factory"
        )


def _parsed(text: str, where: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", text, re.ASCII):
        raise ConfigError(f"{where}: shape '{text}' is not a shape: write 5, or 3x32x32")
    return tuple(map(int, text.split("x")))


class DigitsSource(Source):
    """Images ``(1, 8, 8)`` and their digit; the values (0 to 16 in the files) have mean 0, variance 1."""

    name = "digits"
    features = Features("image", (1, 8, 8), classes=10, stepwise=False)

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """Images ``(batch, 1, 8, 8)``, or as the model takes them, and digits ``(batch,)``."""
        from sklearn.datasets import load_digits  # takes a second

        bundled = load_digits()
        images = torch.tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 6 - 0.81
        digits = torch.tensor(bundled.target, dtype=torch.int64)
        if view := _VIEWS.get(getattr(model, "input_kind", "")):
            images = view(images)
        order = torch.randperm(len(digits), generator=generator(0, "digits: training and test images"))
        train, test = (
            Samples.of(((images[rows],), digits[rows]), self.where) for rows in (order[:TRAIN], order[TRAIN:])
        )
        description = f"{TRAIN} images of 8 x 8 to train and {test.samples} to test"
        return self.of_parts(model, f"handwritten digits, {description}", train, test)


class TextSource(Source):
    """``text:PATH``, a file of any size and encoding: its bytes are ids, and the target is the next byte.

    It stays as bytes, mapped from the disk; only a batch becomes int64.
    """

    name = "text"

    def __init__(self, where: str, path: str, length: int = 32) -> None:
        super().__init__(where)
        self.path, self.length = Path(path).expanduser(), length
        if not self.path.is_file():
            raise ConfigError(f"{where}: {no_file(self.path)}")
        size = self.path.stat().st_size
        if size <= length:
            raise ConfigError(
                f"{where}: {self.path} has {plural(size, 'byte')}; "
                f"length={length} needs at least {length + 1}, for a sample and its last target"
            )
        self.features = Features("ids", (length,), classes=BYTES, vocabulary=BYTES, stepwise=True)

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """Windows of ids ``(batch, length)``, and the next byte of each."""
        text = np.memmap(self.path, dtype=np.uint8, mode="r")
        description = f"{plural(len(text), 'byte')} of {self.path}, {self.length} per sample"
        samples = Samples((len(text) - 1) // self.length, partial(windows, text, self.length))
        return self.of_parts(model, description, samples)


def windows(text: Any, length: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Those of these numbers ``(batch,)``: ids ``(batch, length)``, and the same one byte further on."""
    positions = numbers.numpy()[:, np.newaxis] * length + np.arange(length + 1)
    ids = torch.from_numpy(text[positions]).long()
    return ids[:, :-1], ids[:, 1:]
