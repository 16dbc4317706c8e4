"""Source: where samples come from, and how they are arranged for the kind of input a model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.config.features import Features
from dpexp.data.dataset import Dataset, TensorDataset
from dpexp.data.objective import Objective

_SHOWN = {
    "vector": "vectors of floats",
    "image": "images",
    "ids": "integer ids",
    "sequence": "sequences of vectors",
    "clicks": "dense features and ids",
}


class Source:
    """What ``--data`` names. ``features`` is None where the model decides what the samples are.

    ``where`` starts every error message (``--data text:book.txt``).
    """

    features: Features | None = None
    loss: Callable[..., Any] | None = None

    def __init__(self, where: str) -> None:
        self.where = where

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        """The samples as this model takes them. Raises ConfigError when it cannot take them."""
        raise NotImplementedError

    def objective(self, model: nn.Module, features: Features | None) -> Objective:
        """What the model is trained for on these samples: ``--loss``, the model's own, or a standard one."""
        return Objective(model, features.classes if features else None, self.loss)

    def suits(self, model: nn.Module, features: Features) -> None:
        """Raises ConfigError for a model that says it takes another kind of input."""
        wanted = getattr(model, "input_kind", None)
        if wanted not in (None, features.kind):
            raise self._mismatch(features, wanted)

    def arranged(self, inputs: Tensor, features: Features, model: nn.Module) -> Tensor:
        """Inputs ``(samples, *features.shape)`` in the kind that the model's ``input_kind`` asks for.

        An image (channels, height, width) is read as a vector, or row by row as a sequence; a
        sequence (length, width) as a vector, or as an image of one channel. Raises ConfigError where
        no such view makes sense.
        """
        kind, wanted = features.kind, getattr(model, "input_kind", None)
        if wanted in (None, kind):
            return inputs
        if wanted == "vector" and kind in ("image", "sequence"):
            return inputs.flatten(1)
        if wanted == "sequence" and kind == "image":
            return inputs.transpose(1, 2).flatten(2)
        if wanted == "image" and kind == "sequence":
            return inputs.unsqueeze(1)
        raise self._mismatch(features, wanted)

    def _mismatch(self, features: Features, wanted: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: the samples are {_SHOWN[features.kind]} {features.shape} and the model takes "
            f"{_SHOWN.get(wanted, wanted)}: choose another model or other data"
        )

    def in_memory(
        self,
        name: str,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None,
        description: str,
        features: Features,
        model: nn.Module,
    ) -> TensorDataset:
        """Inputs and targets that lie in memory, arranged for the model."""
        objective = self.objective(model, features)
        held_out = None
        if test is not None:
            inputs = self.arranged(test[0], features, model)
            held_out = TensorDataset(name + " (test)", [inputs], test[1], description, features, objective)
        inputs = self.arranged(train[0], features, model)
        return TensorDataset(name, [inputs], train[1], description, features, objective, held_out)
