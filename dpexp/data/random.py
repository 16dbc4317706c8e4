"""Random samples of the kind that the model takes: the model's own ``example`` makes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.config.user_errors import as_config_error
from dpexp.data.base import Source
from dpexp.data.dataset import TensorDataset
from dpexp.data.rng import generator


class RandomSource(Source):
    """``random:samples=100``. The same seed and model give the same samples."""

    def __init__(self, where: str, samples: int) -> None:
        super().__init__(where)
        self.samples = samples

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        """Raises ConfigError for a model without ``example(samples, generator)``."""
        example = getattr(model, "example", None)
        name = type(model).__name__
        if not callable(example):
            raise ConfigError(
                f"{self.where}: what random samples look like, {name} does not say. Give it a method "
                "example(samples, generator) that returns (inputs, targets), or choose other data, "
                "as --data digits or --data package.module:factory"
            )
        with as_config_error(f"{self.where}: {name}.example"):
            made = example(self.samples, generator(seed, "random samples"))
        inputs, targets = self._checked(made, name)
        description = f"{self.samples} random samples for {name}, seed {seed}"
        return TensorDataset("random", inputs, targets, description, None, self.objective(model, None))

    def _checked(self, made: Any, name: str) -> tuple[tuple[Tensor, ...], Tensor]:
        if isinstance(made, tuple) and len(made) == 2:
            inputs = made[0] if isinstance(made[0], tuple) else (made[0],)
            tensors = (*inputs, made[1])
            if all(isinstance(item, Tensor) and item.shape[:1] == (self.samples,) for item in tensors):
                return inputs, made[1]
        raise ConfigError(
            f"{self.where}: {name}.example must return (inputs, targets), tensors or a tuple of tensors, "
            f"each with {self.samples} rows; found {_outline(made)}"
        )


def _outline(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_outline, value))})"
    return f"a {type(value).__name__}"
