"""Optimizers: what ``--optimizer`` names, made for the parameters of a placed model, and their state by name.

    parameters --+-- tables with sparse gradients --> the optimizer's variant for them (SparseAdam for adam)
                 +-- all others ------------------> the optimizer

A sparse gradient has the rows that the batch looked up. An optimizer that would change the other rows as well
(by weight decay, by momentum) cannot take it, and is refused before a run opens. Where both kinds of
parameters have the same optimizer, on one kind of device, one trains all of them.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dpexp.config.errors import ConfigError, describe
from dpexp.config.factories import Factory
from dpexp.config.words import listed
from dpexp.strategies.modules import EmbeddingTable, named_parameters
from dpexp.strategies.placed import Placed, Shards
from dpexp.training.optimizer_state import attributes, is_equal, keeper, write_attributes
from dpexp.training.registry import FOR_SPARSE


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
        self.members, self.clip_norm = members, clip_norm
        self.accumulate, self.batches = accumulate, 0
        self._shards, self._parameters = placed.shards, named_parameters(placed.module)
        self._first_attributes = [attributes(each) for each in members]

    def __str__(self) -> str:
        return listed(dict.fromkeys(type(keeper(each)).__name__ for each in self.members))

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

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Inside, no batch has come since the last step; at the end those from before have, and gradients."""
        batches, before = self.batches, {each: each.grad for each in self._parameters.values()}
        self.restart()
        yield
        self.batches = batches
        for parameter, gradient in before.items():
            parameter.grad = gradient

    def restart(self) -> None:
        """Forget the batches since the last step, with their gradients."""
        self.batches = 0
        for parameter in self._parameters.values():
            parameter.grad = None

    def attributes(self) -> list[dict[str, Any]]:
        """What has changed of each member's attributes since it was made; every rank must call this."""
        now = [attributes(each) for each in self.members]
        pairs = zip(now, self._first_attributes, strict=True)
        return [
            {path: own[path] for path in own if not is_equal(own[path], first.get(path))}
            for own, first in pairs
        ]

    def write_attributes(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Give each member these of another one. Raises HiddenStateError where it has no place for one."""
        for member, own, first, of_other in zip(
            self.members, self.attributes(), self._first_attributes, values, strict=False
        ):
            unchanged = {path: first[path] for path in own if path in first}
            write_attributes(member, {**unchanged, **of_other})

    def states(self) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
        """(name, parameter, what is kept of it) of the parameters of which something is kept."""
        for name, parameter in self._parameters.items():
            for member in self.members:
                state = keeper(member).state
                if parameter in state:
                    yield name, parameter, state[parameter]


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


# --- how they are made ---------------------------------------------------------------------------


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

    def of(self, placed: Placed) -> Optimizers:
        """For the parameters of a placed model that are trained."""
        trained = _trained(placed)
        is_known = bool(self.factory.name)  # else it gets all parameters, in their order
        tables = {
            id(each.weight)
            for each in placed.module.modules()
            if is_known and isinstance(each, EmbeddingTable) and each.sparse
        }
        in_tables = [each for each in trained if id(each) in tables]
        others = [each for each in trained if id(each) not in tables]
        variant = self.for_sparse() if in_tables else self
        is_on_one = len({each.device.type for each in trained}) < 2  # else torch.optim fuses no kernels
        if variant == self and is_on_one:  # each optimizer's step costs as much as a small table's
            members = self.make([*others, *in_tables])
        else:
            members = [*self.make(others), *variant.make(in_tables)]
        return Optimizers(members, placed, self.clip_norm, self.accumulate)

    def for_sparse(self) -> "OptimizerChoice":
        """The variant for tables with sparse gradients, itself where a user made it. Raises ConfigError."""
        name = self.factory.name
        if not name:
            return self
        if name not in FOR_SPARSE or self.factory.options.get("momentum"):
            found = name if name not in FOR_SPARSE else "momentum"
            raise ConfigError(f"{found} changes every row in every step")
        target = FOR_SPARSE[name]
        if target == self.factory.target:
            return self
        return replace(self, factory=replace(self.factory, target=target, name=target.rpartition(":")[2]))

    def make(self, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        """The optimizer of these parameters; none if there are none.

        Raises ConfigError for a factory that cannot be loaded, takes no parameters, raises, or returns no
        Optimizer.
        """
        if not parameters:
            return []
        checks: Any = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():
            checks.disable()  # it is the default, but torch warns in Adagrad's step until somebody says so
        factory, loaded = self.factory, self.factory.load()
        first = next(iter(inspect.signature(loaded).parameters), "lr")
        if first == "lr":
            raise ConfigError(f"{factory.where}: {factory.target} takes no list of parameters to train")
        made = factory.call(eager(loaded) if factory.name else loaded, {first: parameters, "lr": self.lr})
        if not isinstance(made, torch.optim.Optimizer):
            found = type(made).__name__
            raise ConfigError(f"{factory.where}: {factory.target} returned {found}, not an Optimizer")
        return [made]


NOT_TRACED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""The methods that import ``torch._dynamo`` when they are called first; so does a first step."""


@functools.cache
def eager(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A subclass of the same name without what PyTorch wraps its methods in for ``torch.compile``.

    A run compiles no optimizer, and ``torch._dynamo`` takes 0.7 s to import. It computes the same bits, and
    hooks on its steps work as before.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in NOT_TRACED}
    step = torch.no_grad()(inspect.unwrap(kind.step))  # its first instance adds hooks and profiler
    return type(kind.__name__, (kind,), methods | {"step": step, "__doc__": kind.__doc__})


@dataclass(frozen=True)
class OwnOptimizer:
    """What a user's function makes of all parameters that are trained; it steps after so many batches."""

    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    accumulate: int = 1

    def of(self, placed: Placed) -> Optimizers:
        """For the parameters of a placed model that are trained."""
        return Optimizers([self.make(_trained(placed))], placed, accumulate=self.accumulate)


OptimizerFactory = OptimizerChoice | OwnOptimizer


def _trained(placed: Placed) -> list[nn.Parameter]:
    return [each for each in placed.module.parameters() if each.requires_grad]


def check_optimizer(choice: OptimizerChoice, model: nn.Module) -> None:
    """Raises ConfigError for an optimizer or option that does not exist, or that cannot train the model.

    The optimizer takes a step on small parameters, as many as are trained and with as many dimensions: it may
    choose among them. Then one with a sparse gradient where the model has sparse tables.
    """
    where = choice.factory.where
    trained = [each for each in model.parameters() if each.requires_grad]
    shapes = [(2, 2) if is_lazy(each) else each.shape for each in trained]
    _try(choice, [torch.zeros([min(2, size) for size in shape]) for shape in shapes])
    tables = [
        name or "the model"
        for name, part in model.named_modules()
        if isinstance(part, EmbeddingTable) and part.sparse and part.weight.requires_grad
    ]
    if not tables:
        return
    try:
        _try(choice.for_sparse(), [torch.ones(2, 2).to_sparse(1)])
    except ConfigError as error:
        raise ConfigError(
            f"{where} cannot take the sparse gradients of {listed(tables)} "
            f"({str(error).removeprefix(where + ': ')}): use {', '.join(FOR_SPARSE)}, or dense gradients"
        ) from error


def _try(choice: OptimizerChoice, gradients: Sequence[torch.Tensor]) -> None:
    """Take a step with these gradients. Raises ConfigError."""
    parameters = [nn.Parameter(torch.ones(each.shape)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    try:
        for optimizer in choice.make(parameters):
            optimizer.step()
    except ConfigError:
        raise
    except Exception as error:
        text = f"{choice.factory.where}: {describe(error)}"
        if "closure" in str(error):
            text += ". dpexp calls step() without a closure, with the gradients of all rows: L-BFGS and SAM, "
            text += "which compute the loss several times, cannot be compared"
        raise ConfigError(text) from error
