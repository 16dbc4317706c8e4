"""Small models in plain PyTorch, and the losses that pipelines compute inside their schedule."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, LENGTH, VOCABULARY = 16, 8, 32


class Net(nn.Module):
    """A norm, and a feed-forward part with a residual connection: features in, features out."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(x + self.down(functional.gelu(self.up(self.norm(x)))))

    def example(self, samples, generator):
        return torch.randn(samples, WIDTH, generator=generator), torch.randn(samples, 4, generator=generator)


class Text(nn.Module):
    """Tokens through an embedding, causal attention of four heads, and a feed-forward part."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up = nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.table(tokens)
        y = self.norm(x)
        split = (self.heads(part(y)) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.down(functional.gelu(self.up(x))))

    def heads(self, x):
        """(rows, length, features of the heads here) as (rows, heads, length, 4)."""
        return x.unflatten(-1, (-1, 4)).transpose(1, 2)

    def example(self, samples, generator):
        drawn = (torch.randint(VOCABULARY, (samples, LENGTH), generator=generator) for _ in range(2))
        return tuple(drawn)


class Tokens(Text):
    """The same, with its loss."""

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1))


class Feed(nn.Module):
    """Tokens through an embedding, a norm and a feed-forward part that is a module of its own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.ffn(self.norm(self.table(tokens))))

    example, loss = Tokens.example, Tokens.loss


class Chain(nn.Module):
    """Eight layers, of which stages take some; the loss is computed inside."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({str(n): nn.Linear(WIDTH, WIDTH) for n in range(8)})

    def forward(self, x, targets=None):
        for layer in self.layers.values():
            x = torch.tanh(layer(x))
        return x if targets is None else functional.mse_loss(x, targets)

    def example(self, samples, generator):
        x = torch.randn(samples, WIDTH, generator=generator)
        return {"x": x, "targets": torch.randn(samples, WIDTH, generator=generator)}


def pairs(samples=8):
    """Inputs with targets that the model itself takes."""
    return [{"x": torch.randn(WIDTH), "targets": torch.randn(WIDTH)} for _ in range(samples)]


def net():
    return Net()


def text():
    return Tokens()


def feed():
    return Feed()


def chain():
    return Chain()


class TextWithLoss(Text):
    """The same, which computes the loss inside."""

    def forward(self, tokens, targets):
        return functional.cross_entropy(super().forward(tokens).flatten(0, 1), targets.flatten(0, 1))


def text_with_loss():
    return TextWithLoss()


def texts(samples=9):
    """Tokens with targets that the model itself takes."""
    drawn = ((torch.randint(VOCABULARY, (LENGTH,)) for _ in range(2)) for _ in range(samples))
    return [dict(zip(("tokens", "targets"), pair, strict=True)) for pair in drawn]
