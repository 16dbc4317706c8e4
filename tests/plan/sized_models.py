"""Six models whose training steps take some gigabytes of a device, and their batches."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, TOKENS, WIDTH, WORDS = 16, 512, 1024, 16_000


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """(rows, tokens, WIDTH) to the same."""
        q, k, v = self.heads(self.before(x)).view(*x.shape[:2], 3, -1, 64).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.joined(attended), self.dropout, self.training)
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    def __init__(self, layers: int = 12, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, tokens) to (rows, tokens, WORDS)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tied() -> GPT:
    """Without dropout, its embedding and head are one."""
    model = GPT(dropout=0.0)
    model.head.weight = model.embedding.weight
    return model


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8)
        self.head = nn.Linear(512, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, tokens) to (rows, tokens, WORDS)."""
        return self.head(self.encoder(self.embedding(ids)))


def wide() -> nn.Module:
    """A perceptron of 200 million parameters."""
    return nn.Sequential(
        nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192)
    )


def convolutional() -> nn.Module:
    """Convolutions with batch norms."""
    layers = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(6):
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(2_000_000, 64), nn.Linear(64, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, tokens) to (rows, WORDS)."""
        return self.head(self.embedding(ids).mean(dim=1))


def tokens() -> tuple[Tensor, Tensor]:
    """Ids, and the same again as targets."""
    ids = torch.randint(WORDS, (ROWS, TOKENS))
    return ids, ids


def labelled_tokens() -> tuple[Tensor, Tensor]:
    """Ids, and a label for each row."""
    return torch.randint(WORDS, (2048, 8)), torch.randint(WORDS, (2048,))


def vectors() -> tuple[Tensor, Tensor]:
    """For a perceptron."""
    return torch.randn(8192, 1024), torch.randn(8192, 8192)


def images() -> tuple[Tensor, Tensor]:
    """With a label for each."""
    return torch.randn(64, 3, 112, 112), torch.randint(10, (64,))


CASES = {
    "GPT": "tokens",
    "tied": "tokens",
    "Encoder": "tokens",
    "wide": "vectors",
    "convolutional": "images",
    "Table": "labelled_tokens",
}
"""The data of each model."""
