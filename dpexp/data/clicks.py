"""Clicks: dense features and ids drawn from a power law, clicked or not by a planted model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import TensorDataset
from dpexp.data.objective import Objective
from dpexp.data.rng import generator, mix


class ClicksSource(Source):
    """Dense features ``(batch, dense)``, ids ``(batch, tables)`` -> clicks ``(batch,)``, 0.0 or 1.0.

    Of each table a few ids come often and most come rarely, as in real logs: id k with a weight of about
    ``(k + 1) ** -skew``. The planted model gives each id of each table an effect by hashing it, so that
    tables may have any number of rows at no cost; the sum of all effects and of a linear function of
    the dense features is the logit of a click.
    """

    def __init__(self, where: str, samples: int, dense: int, tables: int, rows: int, skew: float) -> None:
        super().__init__(where)
        self.samples, self.skew, self.rows, self.tables = samples, skew, rows, tables
        self.features: Features = Features("clicks", (dense,), vocabulary=rows, tables=tables)

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        """Raises ConfigError for a model that takes other inputs."""
        self.suits(model, self.features)
        objective = self.objective(model, self.features)
        test = self._drawn(max(1, self.samples // 5), seed, "test", objective)
        return self._drawn(self.samples, seed, "train", objective, test)

    def _drawn(
        self, samples: int, seed: int, part: str, objective: Objective, test: TensorDataset | None = None
    ) -> TensorDataset:
        draw = generator(seed, f"clicks: {part}")
        dense = torch.randn(samples, *self.features.shape, generator=draw)
        ids = power_law((samples, self.tables), self.rows, self.skew, draw)
        logits = self._planted(dense, ids, seed)
        clicks = (torch.rand(samples, generator=draw) < logits.sigmoid()).float()
        description = f"{samples} samples of {self.tables} ids below {self.rows}, seed {seed} ({part})"
        return TensorDataset("clicks", [dense, ids], clicks, description, self.features, objective, test)

    def _planted(self, dense: Tensor, ids: Tensor, seed: int) -> Tensor:
        """Logits ``(samples,)``: the dense part has variance 1, each table as much again in all 4."""
        weights = torch.randn(dense.shape[1], generator=generator(seed, "clicks: planted model"))
        effects = (hashed(ids, seed) - 0.5) * 12**0.5  # uniform, variance 1
        logits: Tensor = (
            dense @ weights / dense.shape[1] ** 0.5 + 2 * effects.sum(dim=1) / ids.shape[1] ** 0.5
        )
        return logits


def power_law(shape: tuple[int, ...], rows: int, skew: float, draw: torch.Generator) -> Tensor:
    """Ids from 0 to ``rows - 1``: the inverse of the continuous power law's distribution, cut to integers."""
    uniform = torch.rand(shape, generator=draw, dtype=torch.float64)
    last = float(rows + 1)
    if abs(skew - 1) < 1e-9:
        drawn = last**uniform
    else:
        drawn = (1 + uniform * (last ** (1 - skew) - 1)) ** (1 / (1 - skew))
    return (drawn.long() - 1).clamp(0, rows - 1)


def hashed(ids: Tensor, seed: int) -> Tensor:
    """For each id ``(samples, tables)`` a fixed number from 0 to 1 that looks random; tables differ."""
    salt = torch.randint(2**62, (ids.shape[1],), generator=generator(seed, "clicks: effects"))
    return mix(ids + salt).double().div(2**32).float()
