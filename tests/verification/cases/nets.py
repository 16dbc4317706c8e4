"""The models of the cases, with an ``example`` of their data each."""

import torch
from torch import nn


def numbers(samples, *shape, generator):
    return torch.randn(samples, *shape, generator=generator)


# --- of layouts over 2, 3 and 4 ranks: sizes divide by each, or by none ------------------------------------

WIDTH, TOKENS, ROWS, SEED = 12, 12, 24, 7


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Block(nn.Module):
    """``(rows, tokens, 6)`` -> ``(rows, 12)``: one block of a transformer without its attention.

    ``up`` starts with numbers that ``initial_up`` draws.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.counter = Counter()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.up.weight.data.copy_(initial_up(2 * WIDTH))

    def forward(self, x):
        x = self.first(x)
        x = self.counter(x + self.down(torch.tanh(self.up(self.norm(x)))))
        return self.head(x.mean(1))

    def example(self, samples, generator):
        x = numbers(samples, TOKENS, 6, generator=generator)
        return x, numbers(samples, WIDTH, generator=generator)


def initial_up(rows):
    """The first rows of ``up.weight``, from a seed of its own."""
    return numbers(rows, WIDTH, generator=torch.Generator().manual_seed(SEED)) / 4


class Lookup(nn.Module):
    """Ids ``(rows,)`` -> ``(rows, 12)``: a table, and a network after it."""

    ids, outputs = ROWS, WIDTH

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(self.ids, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, self.outputs)

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.table(ids))))

    def example(self, samples, generator):
        return torch.arange(samples) * 7 % self.ids, numbers(samples, self.outputs, generator=generator)


class Tied(Lookup):
    """Ids ``(rows,)`` -> logits ``(rows, 25)``: the output layer has the table's weights."""

    ids = outputs = 25

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, self.outputs, bias=False)
        self.head.weight = self.table.weight


class Order(nn.Module):
    """The rows of this rank, in the order of their experts."""

    rank, size = 0, 1

    def forward(self, chosen):
        own = torch.arange(len(chosen)).chunk(self.size)[self.rank]
        return own[chosen[own].argsort(stable=True)]


class Experts(nn.Module):
    """``(rows, 6)`` -> ``(rows, 4)``: the router scales the output of the expert of each row."""

    def __init__(self):
        super().__init__()
        self.router, self.order, self.expert = nn.Linear(6, 3), Order(), nn.Linear(6, 4)
        self.together = nn.Identity()

    def forward(self, x):
        best, chosen = self.router(x).softmax(-1).max(-1)
        order = self.order(chosen)
        made = self.expert(x[order]) * best[order, None]
        return self.together(torch.zeros(len(x), 4, dtype=x.dtype).index_add(0, order, made))

    def example(self, samples, generator):
        return numbers(samples, 6, generator=generator), numbers(samples, 4, generator=generator)


class Layer(nn.Linear):
    """A residual layer."""

    def forward(self, x):
        return x + torch.tanh(super().forward(x))


class Chain(nn.Sequential):
    """``(rows, 6)`` -> ``(rows, 6)`` through 13 layers: no number of stages has equally many."""

    def __init__(self):
        super().__init__(*(Layer(6, 6) for _ in range(13)))

    def example(self, samples, generator):
        return numbers(samples, 6, generator=generator), numbers(samples, 6, generator=generator)


# --- of runs: each has parts ``first``, ``second`` and ``third`` -------------------------------------------


class Net(nn.Module):
    """``(rows, 6)`` -> ``(rows, 4)``: three layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.act = nn.Tanh()
        self.third = nn.Linear(8, 4)

    def forward(self, x):
        return self.third(self.act(self.second(self.act(self.first(x)))))

    def example(self, samples, generator):
        return numbers(samples, 6, generator=generator), numbers(samples, 4, generator=generator)


class Norms(Net):
    """With a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.third(self.act(self.second(self.norm(self.first(x)))))


class Drops(Net):
    """With dropout."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.third(self.drop(self.act(self.second(self.act(self.first(x))))))


class NormsAndDrops(Norms, Drops):
    """With both."""

    def forward(self, x):
        return self.third(self.drop(self.act(self.second(self.norm(self.first(x))))))


class Words(nn.Module):
    """The mean of the vectors of some ids, which are not at the edges of the table or of shards of it."""

    SIZE, LENGTH, PADDING = 1003, 5, 600

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(self.SIZE, 4, padding_idx=self.PADDING)
        self.head = nn.Linear(4, 3)

    def example(self, samples, rng):
        ids = torch.stack([torch.randperm(90, generator=rng)[: self.LENGTH] for _ in range(samples)])
        return 10 + ids, torch.randn(samples, 3, generator=rng)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)).mean(1))
