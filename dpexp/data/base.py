"""Source: where samples come from, and how they fit the kind of input that a model takes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpexp.config.errors import ConfigError
from dpexp.config.features import Features
from dpexp.data.dataset import Dataset, Samples
from dpexp.data.objective import Objective

Columns = tuple[tuple[Tensor, ...], Tensor | None]
"""Inputs and targets in memory, the samples in dimension 0."""

_VIEWS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("image", "vector"): lambda images: images.flatten(1),
    ("image", "sequence"): lambda images: images.transpose(1, 2).flatten(2),  # a sequence of its rows
}
"""How samples of one kind (see ``Features``) become inputs of another."""


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
        """The samples in the form that this model takes. Raises ConfigError for one that takes another."""
        description, train, test = self.load(model, seed)
        objective = self.objective(model)

        def part(columns: Columns, test: Dataset | None) -> Dataset:
            samples = Samples.of((self.view_for(model, columns[0]), columns[1]), self.where)
            return Dataset(self.name, description, objective, samples, test)

        return part(train, part(test, None) if test is not None else None)

    def objective(self, model: nn.Module) -> Objective:
        """The loss and accuracy of the model on these samples."""
        return Objective(model, self.features.classes if self.features else None, self.loss, self.reduction)

    def view_for(self, model: nn.Module, inputs: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
        """The inputs in the kind that the model's ``input_kind`` asks for; only a single one can change.

        Raises ConfigError for a model that takes a kind which the inputs cannot be viewed as.
        """
        wanted = getattr(model, "input_kind", None)
        if self.features is None or wanted in (None, kind := self.features.kind):
            return inputs
        if len(inputs) == 1 and (kind, wanted) in _VIEWS:
            return (_VIEWS[kind, wanted](inputs[0]),)
        raise ConfigError(
            f"{self.where}: the kind of the samples is {kind} {self.features.shape}, and the model takes "
            f"{wanted}: choose another model or other data"
        )
