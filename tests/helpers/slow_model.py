"""A model for the browser test: replicas wait 200 ms outside of Python's lock, so that they overlap."""

import time

import torch
from torch import nn


class SlowLinear(nn.Module):
    """Linear (batch, 5) -> (batch, 2) that first waits for 200 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        outputs: torch.Tensor = self.fc(inputs)
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch that ``--data random`` uses: inputs (samples, 5), targets (samples, 2)."""
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)


def factory() -> nn.Module:
    """The model of ``--model slow_model:factory``."""
    return SlowLinear()
