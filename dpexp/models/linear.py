"""Linear: one layer, the model of PyTorch's data-parallelism tutorial."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` by one layer, ``fc``.

    Source: S. Kim, "Optional: Data Parallelism", PyTorch tutorials (5 -> 2 there).
    """

    input_kind = "vector"

    def __init__(self, in_: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(in_, out)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.fc(inputs)
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and targets: a regression of noise on noise."""
        inputs = torch.randn(samples, self.fc.in_features, generator=generator)
        return inputs, torch.randn(samples, self.fc.out_features, generator=generator)
