"""MLP: a multi-layer perceptron."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Vectors ``(batch, in)`` -> logits ``(batch, out)``: ``depth`` hidden layers with ReLU, then ``head``.

    ``layers`` is a sequence, so that a part of it can be named: ``layers.0`` is the first linear.

    Source: Rumelhart, Hinton, Williams, "Learning representations by back-propagating errors", 1986,
    with ReLU for the sigmoid.
    """

    input_kind = "vector"

    def __init__(self, in_: int, hidden: int, depth: int, out: int) -> None:
        super().__init__()
        self.width = in_
        widths = [in_] + [hidden] * depth
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(inputs))
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and uniform classes."""
        inputs = torch.randn(samples, self.width, generator=generator)
        return inputs, torch.randint(self.head.out_features, (samples,), generator=generator)
