"""Random samples: made by the model's own ``example``, or of a shape, given or that its first layer takes."""

import re

import torch
from torch import nn

from dpexp.config.errors import ConfigError, as_config_error
from dpexp.config.words import plural
from dpexp.data.base import Loaded, Source
from dpexp.data.dataset import Samples
from dpexp.data.losses import NO_TARGETS
from dpexp.data.rng import generator

_FIRST = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU, nn.RNN)
"""Layers that say something about their inputs."""


class RandomSource(Source):
    """``random:samples=100,shape=3x32x32``. The same seed and model give the same samples."""

    name = "random"

    def __init__(self, where: str, samples: int = 100, shape: str = "") -> None:
        super().__init__(where)
        self.samples = samples
        self.shape = _parsed(shape, where) if shape else None

    def load(self, model: nn.Module, seed: int) -> Loaded:
        """What the model's ``example`` returns, or inputs alone. Raises ConfigError where both fail."""
        example, name = getattr(model, "example", None), type(model).__name__
        if self.shape is not None or not callable(example):
            return self._without_targets(model, seed)
        with as_config_error(f"{self.where}: {name}.example"):
            inputs, targets = example(self.samples, generator(seed, "random samples"))
            rows = len(targets)
        columns = inputs if isinstance(inputs, tuple) else (inputs,), targets
        return Loaded(f"{rows} random samples for {name}, seed {seed}", Samples.of(columns, self.where))

    def _without_targets(self, model: nn.Module, seed: int) -> Loaded:
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
        return Loaded(description, samples, note=f"{made}; {NO_TARGETS}")

    def _inferred(self, name: str, layer: nn.Module | None) -> tuple[int, ...]:
        """The shape of a sample that the layer takes. Raises ConfigError where it does not say."""
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
    """``3x32x32`` or ``5`` as numbers."""
    if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", text, re.ASCII):
        raise ConfigError(f"{where}: shape '{text}' is not a shape: write 5, or 3x32x32")
    return tuple(map(int, text.split("x")))
