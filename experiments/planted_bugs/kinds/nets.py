"""Small models for the bugs that a run shows. Each has parts ``first``, ``second`` and ``third``."""

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Net(nn.Module):
    """``(rows, 6)`` -> ``(rows, 4)``: three layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Tanh()
        self.third = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.third(self.act(self.second(self.act(self.first(x)))))

    def example(self, samples, generator):
        return torch.randn(samples, 6, generator=generator), torch.randn(samples, 4, generator=generator)


class Norms(Net):
    """With a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.third(self.act(self.second(self.norm(self.first(x)))))


class Drops(Net):
    """With dropout."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.third(self.drop(self.act(self.second(self.act(self.first(x))))))


class NormsAndDrops(Norms):
    """With both."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.third(self.drop(self.act(self.second(self.norm(self.first(x))))))


class Table(nn.Module):
    """Ids ``(rows, 2)`` of a table of 200 rows -> ``(rows, 4)``."""

    IDS = 200

    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(self.IDS, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Tanh()
        self.third = nn.Linear(WIDTH, 4)

    def forward(self, ids):
        return self.third(self.act(self.second(self.first(ids).sum(1))))

    def example(self, samples, generator):
        ids = torch.randint(self.IDS - 2, (samples, 2), generator=generator)
        return ids, torch.randn(samples, 4, generator=generator)


class Attention(nn.Module):
    """``(rows, 5, 8)`` -> ``(rows, 4)``: one causal head."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 3 * WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.third = nn.Linear(WIDTH, 4)

    def forward(self, x):
        query, key, value = self.first(x).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.third(functional.gelu(self.second(self.norm(mixed))).mean(1))

    def example(self, samples, generator):
        x = torch.randn(samples, 5, WIDTH, generator=generator)
        return x, torch.randn(samples, 4, generator=generator)


class Classes(Net):
    """Logits of four classes, and the loss of cross entropy."""

    def example(self, samples, generator):
        x = torch.randn(samples, 6, generator=generator)
        return x, torch.randint(4, (samples,), generator=generator)


class Losing(Net):
    """With a loss of its own."""

    def loss(self, outputs, targets):
        return functional.l1_loss(outputs, targets)
