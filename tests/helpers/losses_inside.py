"""Models whose forward returns the loss, as those of Hugging Face do; it is not a mean over rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTH, CLASSES, IGNORED = 6, 7, -100


@dataclass
class Output:
    """What a model of Hugging Face returns."""

    loss: Tensor | None
    logits: Tensor


class Tagger(nn.Module):
    """A class for each step; rows have one to six steps that count.

    ``returns``: what the forward returns beside logits, or instead of them.
    """

    def __init__(self, returns: str = "output", reduction: str = "mean") -> None:
        super().__init__()
        self.returns, self.reduction = returns, reduction
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def example(self, samples: int, generator: torch.Generator) -> Any:
        ids = torch.randint(11, (samples, LENGTH), generator=generator)
        labels = torch.randint(CLASSES, (samples, LENGTH), generator=generator)
        lengths = torch.arange(samples) % LENGTH + 1
        labels[torch.arange(LENGTH) >= lengths[:, None]] = IGNORED
        return (ids, labels), labels

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.embedding(ids).cumsum(1))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=self.reduction)
        made = {"output": Output(loss, logits), "loss": loss, "tuple": (loss, logits), "last": (logits, loss)}
        return made.get(self.returns, logits)


class Shifted(Tagger):
    """Predicts the next label: the loss divides by one step less of each row."""

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.embedding(ids).cumsum(1))[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "spread": logits.std()}

    def loss_weight(self, targets: Tensor) -> Tensor:
        return (targets[:, 1:] != IGNORED).sum()
