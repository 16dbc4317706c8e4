"""Sequences of different lengths, with a class at each step that depends on the steps before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpexp.config.features import PADDING, Features
from dpexp.data.base import Source
from dpexp.data.dataset import TensorDataset
from dpexp.data.objective import Objective
from dpexp.data.rng import generator

DECAY = 0.7
"""How much of the hidden state a step keeps."""


class SequencesSource(Source):
    """Values ``(batch, length, width)``, lengths ``(batch,)`` -> classes ``(batch, length)``.

    The rule: a hidden state of one number a class decays by ``DECAY`` a step and adds a fixed random
    projection of the step's values; the class is the largest. Steps behind the end are zeros of class
    ``PADDING``.
    """

    def __init__(self, where: str, samples: int, length: int, width: int, classes: int) -> None:
        super().__init__(where)
        self.samples = samples
        self.features: Features = Features("sequence", (length, width), classes=classes, stepwise=True)

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        """Raises ConfigError for a model that takes no sequences."""
        features = self.features
        self.suits(model, features)
        objective = self.objective(model, features)
        test = self._drawn(max(1, self.samples // 5), seed, "test", features, objective)
        return self._drawn(self.samples, seed, "train", features, objective, test)

    def _drawn(
        self,
        samples: int,
        seed: int,
        part: str,
        features: Features,
        objective: Objective,
        test: TensorDataset | None = None,
    ) -> TensorDataset:
        draw = generator(seed, f"sequences: {part}")
        length, width = features.shape
        lengths = torch.randint(1, length + 1, (samples,), generator=draw)
        ended = torch.arange(length) >= lengths.unsqueeze(1)
        values = torch.randn(samples, length, width, generator=draw).masked_fill(ended.unsqueeze(2), 0.0)
        classes = self._rule(values, seed).masked_fill(ended, PADDING)
        description = f"{samples} sequences of 1 to {length} steps, seed {seed} ({part})"
        return TensorDataset("sequences", [values, lengths], classes, description, features, objective, test)

    def _rule(self, values: Tensor, seed: int) -> Tensor:
        """The classes ``(samples, length)`` of values ``(samples, length, width)``."""
        assert self.features.classes is not None
        shape = (values.shape[2], self.features.classes)
        projected = values @ torch.randn(shape, generator=generator(seed, "sequences: rule"))
        state = torch.zeros_like(projected[:, 0])
        classes = []
        for step in projected.unbind(dim=1):
            state = DECAY * state + step
            classes.append(state.argmax(dim=1))
        return torch.stack(classes, dim=1)
