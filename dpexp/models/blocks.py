"""Blocks: three layers with names, so that a part of the model can be wrapped."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Blocks(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` through ``block1``, ``block2`` and ``block3``, all linear.

    Source: "Multi-GPU examples", PyTorch tutorials, whose block2 alone is wrapped in DataParallel
    (10 -> 20 -> 20 -> 20 there).
    """

    input_kind = "vector"

    def __init__(self, in_: int, hidden: int, out: int) -> None:
        super().__init__()
        self.block1 = nn.Linear(in_, hidden)
        self.block2 = nn.Linear(hidden, hidden)
        self.block3 = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.block3(self.block2(self.block1(inputs)))
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and targets: a regression of noise on noise."""
        inputs = torch.randn(samples, self.block1.in_features, generator=generator)
        return inputs, torch.randn(samples, self.block3.out_features, generator=generator)
