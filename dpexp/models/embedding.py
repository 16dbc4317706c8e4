"""EmbeddingLinear: a table looked up on the host, and a linear layer for the accelerator."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EmbeddingLinear(nn.Module):
    """Ids ``(batch,)`` or ``(batch, length)`` -> logits ``(batch, out)`` or ``(batch, length, out)``.

    ``embedding`` holds the table (rows, dim), ``linear`` maps each looked-up row to the logits.

    Source: "Multi-GPU examples", PyTorch tutorials, "Part of the model on CPU and part on the GPU"
    (1000 x 10, then 10 -> 10 there).
    """

    input_kind = "ids"

    def __init__(self, rows: int, dim: int, out: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, dim)
        self.linear = nn.Linear(dim, out)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.embedding(ids))
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniform ids ``(samples,)`` and uniform classes: nothing to learn but the noise."""
        ids = torch.randint(self.embedding.num_embeddings, (samples,), generator=generator)
        return ids, torch.randint(self.linear.out_features, (samples,), generator=generator)
