"""Source: where samples come from, and the loss of a model on them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpexp.config.features import Features
from dpexp.data.dataset import Dataset, Samples
from dpexp.data.objective import Objective
from dpexp.data.user_batch import forward_signature

Columns = tuple[tuple[Tensor, ...], Tensor | None]
"""Inputs and targets in memory, the samples in dimension 0."""


class Source:
    """What ``--data`` names. ``features`` is None where the model decides what the samples are.

    ``where`` starts every error message (``--data text:book.txt``); ``loss`` and ``reduction`` are what the
    options of these names say. ``note`` says what the last ``dataset`` had to assume.
    """

    name: str
    features: Features | None = None
    loss: Callable[..., Any] | None = None
    note: str = ""
    reduction: str = ""

    def __init__(self, where: str) -> None:
        self.where = where

    def load(self, model: nn.Module, seed: int) -> tuple[str, Columns, Columns | None]:
        """A description of the samples, those to train on, and those held out."""
        raise NotImplementedError

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """The samples in the form that this model takes."""
        description, train, test = self.load(model, seed)
        objective, forward = self.objective(model), forward_signature(model)

        def part(columns: Columns, test: Dataset | None) -> Dataset:
            samples = Samples.of(columns, self.where)
            return Dataset(self.name, description, objective, samples, test, forward)

        return part(train, part(test, None) if test is not None else None)

    def objective(self, model: nn.Module) -> Objective:
        """The loss and accuracy of the model on these samples."""
        return Objective.of(
            model, self.features.classes if self.features else None, self.loss, self.reduction
        )
