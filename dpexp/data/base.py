"""Source: where samples come from, and the loss of a model on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpexp.config.features import Features
from dpexp.data.dataset import Dataset, Epochs
from dpexp.data.objective import Objective
from dpexp.data.user_batch import forward_signature


@dataclass(frozen=True)
class Loaded:
    """What a source has: in words, to train on, held out, and what it had to assume, for the run's note."""

    description: str
    train: Epochs
    test: Epochs | None = None
    note: str = ""


class Source:
    """What ``--data`` names. ``features`` is None where the model decides what the samples are.

    ``where`` starts every error message (``--data text:book.txt``); ``loss`` and ``reduction`` are what the
    options of these names say.
    """

    name: str
    features: Features | None = None
    loss: Callable[..., Any] | None = None
    reduction: str = ""

    def __init__(self, where: str) -> None:
        self.where = where

    def load(self, model: nn.Module, seed: int) -> Loaded:
        """The samples in the form that this model takes. Raises ConfigError for others."""
        raise NotImplementedError

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """The samples with the loss of this model. Raises ConfigError as ``load``."""
        loaded, forward = self.load(model, seed), forward_signature(model)
        classes = self.features.classes if self.features else None
        objective = Objective(model, classes, self.loss, self.reduction)

        test = None
        if loaded.test is not None:
            name = f"{self.name} (test)"
            test = Dataset(name, loaded.description, objective, loaded.test, forward=forward)
        return Dataset(
            self.name, loaded.description, objective, loaded.train, test, forward, note=loaded.note
        )
