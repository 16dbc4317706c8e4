"""Synthetic samples: inputs from a seeded generator, targets from a ground truth that can be learned."""

import torch
from torch import Tensor, nn

from dpexp.config.errors import plural
from dpexp.config.features import PADDING, Features
from dpexp.data.base import Columns, Source
from dpexp.data.rng import generator

_LOW = (1 << 32) - 1
DECAY = 0.7
"""The fraction of the hidden state that remains after a step."""


class SyntheticSource(Source):
    """Training and test samples have the same ground truth; a fifth as many are held out."""

    samples: int
    description: str

    def load(self, model: nn.Module, seed: int) -> tuple[str, Columns, Columns]:
        train = self.draw(self.samples, seed, generator(seed, f"{self.name}: train"))
        test = self.draw(max(1, self.samples // 5), seed, generator(seed, f"{self.name}: test"))
        return f"{self.description}, seed {seed} (train)", train, test

    def draw(self, samples: int, seed: int, rng: torch.Generator) -> Columns:
        """So many samples; ``seed`` is that of the ground truth."""
        raise NotImplementedError


class SequencesSource(SyntheticSource):
    """Values ``(batch, length, width)``, lengths ``(batch,)`` -> classes ``(batch, length)``.

    Steps after the end of a sequence are zeros of class ``PADDING``.
    """

    name = "sequences"

    def __init__(
        self, where: str, samples: int = 1000, length: int = 20, width: int = 8, classes: int = 4
    ) -> None:
        super().__init__(where)
        self.samples, self.classes = samples, classes
        self.description = f"{plural(samples, 'sequence')} of 1 to {plural(length, 'step')}"
        self.features: Features = Features("sequence", (length, width), classes=classes, stepwise=True)

    def draw(self, samples: int, seed: int, rng: torch.Generator) -> Columns:
        length, width = self.features.shape
        lengths = torch.randint(1, length + 1, (samples,), generator=rng)
        padding = torch.arange(length) >= lengths.unsqueeze(1)
        values = torch.randn(samples, length, width, generator=rng).masked_fill(padding.unsqueeze(2), 0.0)
        return (values, lengths), true_classes(values, self.classes, seed).masked_fill(padding, PADDING)


def true_classes(values: Tensor, classes: int, seed: int) -> Tensor:
    """The classes ``(samples, length)`` of values ``(samples, length, width)``.

    A hidden state has one number for each class. Each step multiplies it by ``DECAY`` and adds a fixed random
    projection of the step's values. The class is the largest.
    """
    shape = (values.shape[2], classes)
    projected = values @ torch.randn(shape, generator=generator(seed, "sequences: rule"))
    state = torch.zeros_like(projected[:, 0])
    largest = []
    for step in projected.unbind(dim=1):
        state = DECAY * state + step
        largest.append(state.argmax(dim=1))
    return torch.stack(largest, dim=1)


class ClicksSource(SyntheticSource):
    """Dense features ``(batch, dense)``, ids ``(batch, tables)`` -> clicks ``(batch,)``, 0.0 or 1.0.

    A few ids of each table are frequent and most are rare, as in real logs: id k has a weight of about
    ``(k + 1) ** -skew``. The logit of a click is the sum of a linear function of the dense features and
    an effect of each id. The effects are hashes of the ids, so that a table of any size takes no memory.
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

    def draw(self, samples: int, seed: int, rng: torch.Generator) -> Columns:
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
