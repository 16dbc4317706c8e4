"""The choice of an optimizer: makes what ``--optimizer`` names for the parameters of a placed model.

    parameters --+-- tables with sparse gradients --> the optimizer's variant for them (SparseAdam for adam)
                 +-- all others ------------------> the optimizer

Where both are of one kind, on one kind of device, one optimizer trains all. A sparse gradient has the rows
that the batch looked up. An optimizer that would change the other rows as well (by weight decay, by
momentum) cannot take it, and is refused before a run opens (``optimizer_check``).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.factories.factory import Factory
from dpexp.strategies.modules.tables import placed_tables
from dpexp.strategies.placed import Placed
from dpexp.training.eager_optimizers import eager
from dpexp.training.optimizer_names import FOR_EVERY_TABLE, FOR_SPARSE
from dpexp.training.optimizers import Optimizers


@dataclass(frozen=True)
class OptimizerChoice:
    """The optimizer of a run; ``clip_norm`` and ``accumulate`` are those of ``Optimizers``.

    Raises ConfigError for a learning rate among the options of the factory.
    """

    factory: Factory
    lr: float
    clip_norm: float | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        if "lr" in self.factory.options:
            raise ConfigError(f"{self.factory.where}: give the learning rate as --lr")

    @property
    def name(self) -> str:
        """Its name in ``OPTIMIZERS``; empty for one of the user's."""
        return self.factory.name

    @property
    def is_for_every_table(self) -> bool:
        """Whether its variant trains tables with dense gradients, too."""
        return self.name in FOR_EVERY_TABLE

    def for_sparse(self) -> "OptimizerChoice":
        """The variant for tables with sparse gradients. Raises ConfigError where there is none."""
        if self.name not in FOR_SPARSE:
            raise ConfigError(f"{self.name} changes every row in every step")
        if self.factory.all_options.get("momentum"):
            raise ConfigError("momentum changes every row in every step")
        return replace(self, factory=replace(self.factory, target=FOR_SPARSE[self.name]))

    def of(self, placed: Placed) -> Optimizers:
        """For the parameters of a placed model that are trained."""
        trained = [each for each in placed.module.parameters() if each.requires_grad]
        return Optimizers(self._members(placed.module, trained), placed, self.clip_norm, self.accumulate)

    def _members(self, module: nn.Module, trained: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        if not self.name:
            return self.make(trained)
        tables = placed_tables(module)
        special = {id(part.weight) for part in tables if part.sparse or self.is_for_every_table}
        plain = [each for each in trained if id(each) not in special]
        in_tables = [each for each in trained if id(each) in special]
        variant = self.for_sparse() if special else self
        is_on_one = len({each.device.type for each in trained}) < 2  # else torch.optim fuses no kernels
        if variant == self and is_on_one:  # each optimizer's step costs as much as a small table's
            return self.make([*plain, *in_tables])
        return [*self.make(plain), *variant.make(in_tables)]

    def make(self, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        """The optimizer of these parameters; none if there are none.

        Raises ConfigError for a factory that cannot be loaded, raises, or returns no Optimizer.
        """
        if not parameters:
            return []
        checks: Any = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():
            checks.disable()  # it is the default, but torch warns in Adagrad's step until somebody says so
        factory = replace(self.factory, options=self.factory.all_options)
        loaded = eager(factory.load()) if self.name else factory.load()
        first = next(iter(inspect.signature(loaded).parameters), "params")
        made = factory.call(loaded, {first: parameters, "lr": self.lr})
        if not isinstance(made, torch.optim.Optimizer):
            found = type(made).__name__
            raise ConfigError(f"{factory.where}: {factory.target} returned {found}, not an Optimizer")
        return [made]


@dataclass(frozen=True)
class OwnOptimizer:
    """What a user's function makes of all parameters that are trained; it steps after so many batches."""

    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    accumulate: int = 1

    def of(self, placed: Placed) -> Optimizers:
        """For the parameters of a placed model that are trained."""
        trained = [each for each in placed.module.parameters() if each.requires_grad]
        return Optimizers([self.make(trained)], placed, accumulate=self.accumulate)


OptimizerFactory = OptimizerChoice | OwnOptimizer
