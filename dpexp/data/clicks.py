"""Clicks: samples as of a log of clicks, from a seeded generator, with a ground truth that can be learned."""

import torch
from torch import Tensor, nn

from dpexp.config.errors import plural
from dpexp.config.features import Features
from dpexp.data.base import Columns, Source
from dpexp.data.rng import generator

_LOW = (1 << 32) - 1


class ClicksSource(Source):
    """Dense features ``(batch, dense)``, ids ``(batch, tables)`` -> clicks ``(batch,)``, 0.0 or 1.0.

    A few ids of each table are frequent and most are rare, as in real logs: id k has a weight of about
    ``(k + 1) ** -skew``. The logit of a click is the sum of a linear function of the dense features and
    an effect of each id. The effects are hashes of the ids, so that a table of any size takes no memory.
    Training and test samples have the same ground truth; a fifth as many are held out.
    """

    name = "clicks"

    def __init__(
        self,
        where: str,
        samples: int = 10_000,
        dense: int = 13,
        tables: int = 8,
        rows: int = 1000,
        skew: float = 1.1,
    ) -> None:
        super().__init__(where)
        self.samples, self.skew, self.rows, self.tables = samples, skew, rows, tables
        self.description = f"{plural(samples, 'sample')} of {plural(tables, 'id')} below {rows}"
        self.features: Features = Features("clicks", (dense,), vocabulary=rows, tables=tables)

    def load(self, model: nn.Module, seed: int) -> tuple[str, Columns, Columns]:
        train = self.draw(self.samples, seed, generator(seed, "clicks: train"))
        test = self.draw(max(1, self.samples // 5), seed, generator(seed, "clicks: test"))
        return f"{self.description}, seed {seed} (train)", train, test

    def draw(self, samples: int, seed: int, rng: torch.Generator) -> Columns:
        """So many samples; ``seed`` is that of the ground truth."""
        dense = torch.randn(samples, *self.features.shape, generator=rng)
        ids = power_law((samples, self.tables), self.rows, self.skew, rng)
        probability = true_logits(dense, ids, seed).sigmoid()
        return (dense, ids), (torch.rand(samples, generator=rng) < probability).float()


def true_logits(dense: Tensor, ids: Tensor, seed: int) -> Tensor:
    """Logits ``(samples,)``: the dense part has variance 1, the ids of all tables together 4."""
    weights = torch.randn(dense.shape[1], generator=generator(seed, "clicks: planted model"))
    effects = (_hashed(ids, seed) - 0.5) * 12**0.5  # uniform, variance 1
    of_ids = 2 * effects.sum(dim=1) / ids.shape[1] ** 0.5
    return torch.add(dense @ weights / dense.shape[1] ** 0.5, of_ids)


def power_law(shape: tuple[int, ...], rows: int, skew: float, rng: torch.Generator) -> Tensor:
    """Ids from 0 to ``rows - 1``: the inverse of the continuous power law's distribution, cut to integers."""
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64)
    last = float(rows + 1)
    if abs(skew - 1) < 1e-9:
        drawn = last**uniform
    else:
        drawn = (1 + uniform * (last ** (1 - skew) - 1)) ** (1 / (1 - skew))
    return (drawn.long() - 1).clamp(0, rows - 1)


def _hashed(ids: Tensor, seed: int) -> Tensor:
    """A fixed number from 0 to 1 for each id ``(samples, tables)`` that looks random; tables differ."""
    salt = torch.randint(2**62, (ids.shape[1],), generator=generator(seed, "clicks: effects"))
    return _mix(ids + salt).double().div(2**32).float()


def _mix(bits: Tensor) -> Tensor:
    """Integers (int64) -> numbers below 2**32 that look random; equal inputs give equal outputs.

    The mixing function is that of Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        bits = (bits ^ ((bits >> 30) & _LOW)) * factor
    return (bits >> 32) & _LOW
