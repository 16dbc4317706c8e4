"""A model for the browser test: replicas wait 200 ms outside of Python's lock, so that they overlap."""

import time
from typing import Any

import torch
from torch import nn


class SlowLinear(nn.Linear):
    """Linear (batch, 5) -> (batch, 2) that first waits for 200 ms."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return super().forward(inputs)

    def example(self, samples: int, generator: torch.Generator) -> Any:
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)
