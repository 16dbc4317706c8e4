"""Random samples, made by the model's own ``example``."""

from typing import Any

from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.config.errors import as_config_error
from dpexp.data.base import Samples, Source
from dpexp.data.dataset import TensorDataset
from dpexp.data.rng import generator
from dpexp.tensors import shapes


class RandomSource(Source):
    """``random:samples=100``. The same seed and model give the same samples."""

    def __init__(self, where: str, samples: int) -> None:
        super().__init__(where)
        self.samples = samples

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        example, name = getattr(model, "example", None), type(model).__name__
        if not callable(example):
            raise ConfigError(
                f"{self.where}: {name} has no method example(samples, generator) to make random samples. "
                "Add one that returns (inputs, targets), or choose other data, as --data digits or "
                "--data package.module:factory"
            )
        with as_config_error(f"{self.where}: {name}.example"):
            returned = example(self.samples, generator(seed, "random samples"))
        inputs, targets = self._check(returned, name)
        description = f"{self.samples} random samples for {name}, seed {seed}"
        return TensorDataset("random", description, self.objective(model), None, inputs, targets)

    def _check(self, returned: Any, name: str) -> Samples:
        if isinstance(returned, tuple) and len(returned) == 2:
            inputs = returned[0] if isinstance(returned[0], tuple) else (returned[0],)
            tensors = (*inputs, returned[1])
            if all(isinstance(item, Tensor) and item.shape[:1] == (self.samples,) for item in tensors):
                return inputs, returned[1]
        raise ConfigError(
            f"{self.where}: {name}.example must return (inputs, targets), tensors or a tuple of tensors, "
            f"each with {self.samples} rows; found {type(returned).__name__} with tensors {shapes(returned)}"
        )
