"""Optimizers: those of a placed model's parameters as one; clipping and accumulation of gradients.

The choice of an optimizer: makes what ``--optimizer`` names for the parameters of a placed model.

    parameters --+-- tables with sparse gradients --> the optimizer's variant for them (SparseAdam for adam)
                 +-- all others ------------------> the optimizer

Where both are of one kind, on one kind of device, one optimizer trains all. A sparse gradient has the rows
that the batch looked up. An optimizer that would change the other rows as well (by weight decay, by
momentum) cannot take it, and is refused before a run opens (``optimizer_check``).

Whether an optimizer can train a model: it is tried on small parameters, before a run opens.

The optimizers that ``--optimizer`` names. Importing this imports no torch.

The state of optimizers as verification has it: full tensors, by names of parameters.

Row-wise Adagrad: Adagrad with one number of state for each row of a table, as recommenders use it.

    sum[row] += mean(gradient[row] ** 2)          row -= lr * gradient[row] / (sqrt(sum[row]) + eps)

A table of ``(rows, dim)`` has a state of ``(rows, 1)``, and rows without a gradient are not touched.

Source: Mudigere et al., "Software-hardware co-design for fast and scalable training of deep learning
recommendation models", 2022; it is the exact row-wise Adagrad of FBGEMM.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError, describe, listed
from dpexp.config.factories import Entry, Factory, Option, Registry
from dpexp.strategies.modules import PlacedTable, named_parameters, placed_tables
from dpexp.strategies.placed import Placed, Shards
from dpexp.training.eager_optimizers import eager


class Optimizers:
    """The optimizers of a placed model's parameters, as one.

    ``clip_norm`` limits the norm of the gradients; ``accumulate`` batches have one step, with the mean of
    their gradients. ``batches`` have come since the last step.
    """

    def __init__(
        self,
        members: Sequence[torch.optim.Optimizer],
        placed: Placed,
        clip_norm: float | None = None,
        accumulate: int = 1,
    ) -> None:
        _check_no_closure(members)
        self.members, self.clip_norm = members, clip_norm
        self.accumulate, self.batches = accumulate, 0
        self._shards, self._parameters = placed.shards, named_parameters(placed.module)

    def step(self) -> bool:
        """The step of every optimizer, if the batch is the last of those that accumulate; whether it is.

        Otherwise the gradients must stay, for backward to add to. Every rank must call this.
        """
        self.batches += 1
        if self.batches < self.accumulate:
            return False
        self.batches = 0
        if self.accumulate > 1:
            for gradient in _gradients(self._parameters).values():
                _values(gradient).div_(self.accumulate)
        if self.clip_norm is not None:
            clip(self._parameters, self._shards, self.clip_norm)
        for member in self.members:
            member.step()
        return True

    def restart(self) -> None:
        """Forget the batches since the last step, with their gradients."""
        self.batches = 0
        for parameter in self._parameters.values():
            parameter.grad = None

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Inside, no batch has come since the last step; at the end those from before have, and gradients."""
        batches, before = self.batches, {each: each.grad for each in self._parameters.values()}
        self.restart()
        yield
        self.batches = batches
        for parameter, gradient in before.items():
            parameter.grad = gradient

    def states(self) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
        """(name, parameter, what is kept of it) of the parameters of which something is kept."""
        for name, parameter in self._parameters.items():
            for member in self.members:
                state = keeper(member).state
                if parameter in state:
                    yield name, parameter, state[parameter]


def _check_no_closure(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raises ConfigError for an optimizer whose step computes the loss again, by a function that it needs."""
    for each in optimizers:
        closure = inspect.signature(each.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ConfigError(
                f"the optimizer {type(each).__name__} computes the loss several times in each step, by a "
                "closure; a step here computes it once: use another optimizer"
            )


def keeper(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that keeps the state: a ZeroRedundancyOptimizer has it in one of its own."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def clip(parameters: Mapping[str, nn.Parameter], shards: Shards, limit: float) -> None:
    """Scale the gradients so that the norm of all of them together is at most ``limit``."""
    gradients = _gradients(parameters)
    norm = shards.total_norm(gradients)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as in torch.nn.utils.clip_grad_norm_
    for gradient in gradients.values():
        values = _values(gradient)
        values.mul_(factor.to(values.device, values.dtype))


def _gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: each.grad for name, each in parameters.items() if each.grad is not None}


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers of a gradient that this rank has, to change in place."""
    local: Any = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    values: torch.Tensor = local._values() if local.is_sparse else local
    return values


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


def check_optimizer(choice: OptimizerChoice, model: nn.Module) -> None:
    """Raises ConfigError for an optimizer or option that does not exist, or that cannot train the model.

    The optimizer takes a step on small parameters, with a sparse gradient where the model has sparse tables.
    """
    if choice.name == "sgd" and not choice.factory.options:
        return
    _try(choice, torch.zeros(2, 2))
    if choice.is_for_every_table:
        _try(choice.for_sparse(), torch.zeros(2, 2))
    names = [
        name or "the model"
        for name, part in model.named_modules()
        if isinstance(part, PlacedTable) and part.sparse and part.weight.requires_grad
    ]
    if names:
        _check_sparse(choice, listed(names))


def _check_sparse(choice: OptimizerChoice, tables: str) -> None:
    """Raises ConfigError for an optimizer that cannot train these tables, which have sparse gradients."""
    where = choice.factory.where
    try:
        _try(choice.for_sparse() if choice.name else choice, torch.ones(2, 2).to_sparse(1))
    except ConfigError as error:
        raise ConfigError(
            f"{where} cannot take the sparse gradients of {tables} "
            f"({str(error).removeprefix(where + ': ')}): use {', '.join(FOR_SPARSE)}, or dense gradients"
        ) from error


def _try(choice: OptimizerChoice, gradient: torch.Tensor) -> None:
    """Take a step with this gradient ``(2, 2)``. Raises ConfigError."""
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = gradient
    (optimizer,) = choice.make([parameter])
    try:
        optimizer.step()
    except Exception as error:
        raise ConfigError(f"{choice.factory.where}: {describe(error)}") from error


_MOMENTUM = Option("momentum", float, 0.9, "The fraction of the last step that is taken again.", min=0)

_OPTIMIZERS = {
    "sgd": Entry("Stochastic gradient descent.", "torch.optim:SGD", takes_more=True),
    "momentum": Entry("SGD with momentum.", "torch.optim:SGD", (_MOMENTUM,), takes_more=True),
    "adam": Entry("Adam; SparseAdam for sparse tables.", "torch.optim:Adam", takes_more=True),
    "adamw": Entry("Adam with decoupled weight decay.", "torch.optim:AdamW", takes_more=True),
    "adamax": Entry("Adam with the infinity norm.", "torch.optim:Adamax", takes_more=True),
    "nadam": Entry("Adam with Nesterov momentum.", "torch.optim:NAdam", takes_more=True),
    "radam": Entry("Rectified Adam.", "torch.optim:RAdam", takes_more=True),
    "adagrad": Entry("Adagrad, of sparse tables too.", "torch.optim:Adagrad", takes_more=True),
    "rowwise_adagrad": Entry(
        "Adagrad; in tables one sum for each row.", "torch.optim:Adagrad", takes_more=True
    ),
    "adadelta": Entry("Adadelta.", "torch.optim:Adadelta", takes_more=True),
    "rmsprop": Entry("RMSprop.", "torch.optim:RMSprop", takes_more=True),
}

OPTIMIZERS = Registry("--optimizer", "optimizer", _OPTIMIZERS)
"""Each with the options of its class in ``torch.optim``, except the learning rate."""

FOR_SPARSE = {
    "sgd": "torch.optim:SGD",
    "adam": "torch.optim:SparseAdam",
    "adagrad": "torch.optim:Adagrad",
    "rowwise_adagrad": "dpexp.training.optimizers:RowwiseAdagrad",
}
"""What trains tables with sparse gradients; the other optimizers change rows that a batch does not use."""

FOR_EVERY_TABLE = ("rowwise_adagrad",)
"""The optimizers whose variant trains tables with dense gradients, too."""


def full_state(optimizers: Optimizers, shards: Shards) -> dict[str, dict[str, Any]]:
    """What the optimizers keep of each parameter, on the host; every rank must call this."""
    return {
        name: {key: _full(shards, name, parameter, value) for key, value in state.items()}
        for name, parameter, state in optimizers.states()
    }


def _full(shards: Shards, name: str, parameter: nn.Parameter, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (shards.full_tensor(name, value) if _is_sharded_as(parameter, value) else value.detach()).cpu()


def _is_sharded_as(parameter: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a tensor of the state has the rows of the parameter. Others, as counters, are not shards."""
    return value.dim() == parameter.dim() > 0 and len(value) == len(parameter)


def groups(optimizers: Optimizers) -> list[list[dict[str, Any]]]:
    """What the parameter groups of each optimizer have besides parameters, which its steps may change."""
    return [[_copied(group) for group in each.param_groups] for each in optimizers.members]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts, lists of numbers, and tensors on the host; no parameters."""
    return {
        key: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for key, value in values.items()
        if _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return type(value) is torch.Tensor or isinstance(value, int | float | str | None)


class RowwiseAdagrad(torch.optim.Optimizer):
    """For parameters ``(rows, dim)`` with dense or sparse gradients."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.01,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        if min(lr, eps, initial_accumulator_value) < 0:
            raise ValueError("lr, eps and initial_accumulator_value must be at least 0")
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of all tables that have a gradient."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad, group["lr"], group["eps"], group["initial"])

    def _update(
        self, table: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float, initial: float
    ) -> None:
        state = self.state[table]
        if not state:
            state["sum"] = torch.full_like(table.detach()[:, :1], initial)
        if not gradient.is_sparse:
            state["sum"].add_(gradient.square().mean(1, keepdim=True))
            table.addcdiv_(gradient, state["sum"].sqrt().add_(eps), value=-lr)
            return
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state["sum"].index_add_(0, rows, values.square().mean(1, keepdim=True))
        table.index_add_(0, rows, values / state["sum"][rows].sqrt_().add_(eps), alpha=-lr)
