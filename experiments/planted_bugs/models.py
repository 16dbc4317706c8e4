"""Small models for the planted bugs; their sizes divide by 2, 3 and 4."""

import torch
from torch import nn

WIDTH, TOKENS, ROWS = 12, 12, 24
SEED = 7


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Pool(nn.Module):
    """The mean over the tokens of a row that are not padding."""

    def forward(self, x, mask):
        return (x * mask).sum(1) / mask.sum(1)


class Net(nn.Module):
    """``(rows, tokens, 6)`` -> ``(rows, 12)``: one block of a transformer without its attention.

    A token whose first number is 0 is padding. ``up`` starts with numbers that ``initial_up`` draws.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.counter = Counter()
        self.pool = Pool()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.up.weight.data.copy_(initial_up(2 * WIDTH))

    def forward(self, x):
        mask = (x[..., :1] != 0).to(x)
        x = self.first(x)
        x = self.counter(x + self.down(torch.tanh(self.up(self.norm(x)))))
        return self.head(self.pool(x, mask))

    def example(self, samples, generator):
        x = torch.randn(samples, TOKENS, 6, generator=generator)
        lengths = torch.randint(1, TOKENS + 1, (samples, 1), generator=generator)
        padding = torch.arange(TOKENS)[None] >= lengths
        return x.masked_fill(padding[..., None], 0), torch.randn(samples, WIDTH, generator=generator)


def initial_up(rows):
    """The first rows of ``up.weight``, from a seed of its own."""
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(SEED)) / 4


class Tied(nn.Module):
    """Ids ``(rows,)`` -> logits ``(rows, 25)``: the output layer has the table's weights."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(25, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 25, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.table(ids))))

    def example(self, samples, generator):
        ids = torch.arange(samples) * 7 % 25
        return ids, torch.randn(samples, 25, generator=generator)


class Lookup(nn.Module):
    """Ids ``(rows,)`` -> ``(rows, 12)``: a table, and a network after it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.table(ids))))

    def example(self, samples, generator):
        ids = torch.arange(samples) * 7 % ROWS
        return ids, torch.randn(samples, WIDTH, generator=generator)


class Layer(nn.Linear):
    """A residual layer."""

    def forward(self, x):
        return x + torch.tanh(super().forward(x))


class Chain(nn.Sequential):
    """``(rows, 6)`` -> ``(rows, 6)`` through 13 layers: no number of stages has equally many."""

    def __init__(self):
        super().__init__(*(Layer(6, 6) for _ in range(13)))

    def example(self, samples, generator):
        return torch.randn(samples, 6, generator=generator), torch.randn(samples, 6, generator=generator)
