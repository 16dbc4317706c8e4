"""A small transformer, with the dense layers and tokens of language models."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, LENGTH, CLASSES = 16, 6, 32


class Transformer(nn.Module):
    """Two encoder layers between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def example(self, samples, generator):
        ids = torch.randint(CLASSES, (samples, LENGTH), generator=generator)
        return ids, ids


def transformer():
    return Transformer()


def loss(outputs, targets):
    """Cross entropy of each token."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
