"""Optimizers: what ``--optimizer`` names, for the parameters of a placed model; clipping and accumulation.

    parameters --+-- tables with sparse gradients --> the optimizer's variant for them (SparseAdam for adam)
                 +-- all others ------------------> the optimizer

Where both are of one kind, on one kind of device, one optimizer trains all. A sparse gradient has the rows
that the batch looked up. An optimizer that would change the other rows as well (by weight decay, by
momentum) cannot take it, and is refused before a run opens.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dpexp.config import spec
from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError, describe
from dpexp.config.run_config import RunConfig
from dpexp.config.spec import Spec
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks.shards import Shards
from dpexp.strategies.tables import PlacedTable, is_mapped, placed_tables
from dpexp.strategies.wrappers import named_parameters
from dpexp.training.eager_optimizers import eager
from dpexp.training.optimizer_names import FOR_EVERY_TABLE, FOR_SPARSE, OPTIMIZERS

Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Optimizers:
    """The optimizers of a placed model's parameters, as one.

    ``clip_norm`` limits the norm of the gradients; ``accumulate`` batches have one step, with the mean of
    their gradients.
    """

    def __init__(
        self,
        members: Sequence[torch.optim.Optimizer],
        placed: Placed,
        clip_norm: float | None = None,
        accumulate: int = 1,
    ) -> None:
        self.members, self._clip_norm = members, clip_norm
        self.accumulate, self._batches = accumulate, 0
        self._shards, self._parameters = placed.shards, named_parameters(placed.module)
        self._prefetch = placed.prefetch

    def step(self) -> bool:
        """The step of every optimizer, if the batch is the last of those that accumulate; whether it is.

        Otherwise the gradients must stay, for backward to add to. Every rank must call this.
        """
        self._batches += 1
        if self._batches < self.accumulate:
            return False
        self._batches = 0
        if self.accumulate > 1:
            for gradient in _gradients(self._parameters).values():
                _values(gradient).div_(self.accumulate)
        if self._clip_norm is not None:
            clip(self._parameters, self._shards, self._clip_norm)
        self._step()
        return True

    def make_state(self) -> None:
        """Take the step of a batch that accumulates, if none was taken: the first makes what is kept."""
        if self._batches:
            self._step()

    def _step(self) -> None:
        with self._prefetch.writing():
            for member in self.members:
                member.step()

    def restart(self) -> None:
        """Forget the batches since the last step, with their gradients."""
        self._batches = 0
        for parameter in self._parameters.values():
            parameter.grad = None

    def states(self) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
        """(name, parameter, what is kept of it) of the parameters of which something is kept."""
        for name, parameter in self._parameters.items():
            for member in self.members:
                if parameter in member.state:
                    yield name, parameter, member.state[parameter]


@dataclass(frozen=True)
class RunOptimizer:
    """Makes the optimizer of a run."""

    config: RunConfig
    accumulate: int = 1

    @property
    def amplifies(self) -> bool:
        """Whether rounding errors may become large: Adam's steps do not depend on a gradient's size."""
        return _parsed(self.config).name not in ("sgd", "momentum")

    def of(self, placed: Placed) -> Optimizers:
        """For the parameters of a placed model that are trained."""
        parsed = _parsed(self.config)
        every_table, sparse = _tables(placed.module)
        special = every_table if parsed.name in FOR_EVERY_TABLE else sparse
        trained = [each for each in placed.module.parameters() if each.requires_grad]
        more = (placed, self.config.clip_norm, self.accumulate)
        if not parsed.name:
            return Optimizers(_made(parsed, trained, self.config.lr), *more)
        plain = [each for each in trained if id(each) not in special]
        tables = [each for each in trained if id(each) in special]
        variant = _variant(parsed) if special else parsed
        is_on_one = len({each.device.type for each in trained}) < 2  # else torch.optim fuses no kernels
        if variant == parsed and is_on_one:  # each optimizer's step costs as much as a small table's
            return Optimizers(_made(parsed, [*plain, *tables], self.config.lr), *more)
        made = [*_made(parsed, plain, self.config.lr), *_made(variant, tables, self.config.lr)]
        return Optimizers(made, *more)


def make_optimizers(factory: Factory | RunOptimizer, placed: Placed) -> Optimizers:
    """The optimizers of a run, or the one that a factory makes of all parameters that are trained."""
    if isinstance(factory, RunOptimizer):
        return factory.of(placed)
    trained = [each for each in placed.module.parameters() if each.requires_grad]
    return Optimizers([factory(trained)], placed)


def check_optimizer(config: RunConfig, model: nn.Module) -> None:
    """Raises ConfigError for an optimizer or option that does not exist, or that cannot train the model.

    The optimizer takes a step on small parameters, with a sparse gradient where the model has sparse tables,
    and one of the user's is made for the model's shapes.
    """
    parsed = _parsed(config)
    if config.eval or parsed.text == "sgd":
        return
    names = [
        name or "the model"
        for name, part in model.named_modules()
        if isinstance(part, PlacedTable) and part.sparse and part.weight.requires_grad
    ]
    where = f"--optimizer {parsed.text}"
    _try(parsed, config, torch.zeros(2, 2), where)
    if not parsed.name:
        _check_shapes(parsed, config, model)
    if parsed.name in FOR_EVERY_TABLE:
        _try(_variant(parsed), config, torch.zeros(2, 2), where)
    if names:
        try:
            variant = _variant(parsed) if parsed.name else parsed
            kept = _try(variant, config, torch.ones(2, 2).to_sparse(1), where)
        except ConfigError as error:
            raise ConfigError(
                f"{where} cannot take the sparse gradients of {listed(names)} "
                f"({str(error).removeprefix(where + ': ')}): use {', '.join(FOR_SPARSE)}, or dense gradients"
            ) from error
        if any(is_mapped(parameter) for parameter in model.parameters()) and _is_as_large(kept):
            raise ConfigError(
                f"{where} keeps as many numbers in memory as {listed(names)} has in a file: "
                "use rowwise_adagrad or sgd"
            )
        if config.options.looks_ahead:
            _check_other_rows(variant, config, where)


def _check_other_rows(parsed: Spec, config: RunConfig, where: str) -> None:
    """Raises ConfigError for an optimizer whose step changes rows of a table that have no gradient."""
    table = nn.Parameter(torch.ones(3, 2))
    (optimizer,) = _made(parsed, [table], config.lr)
    for row in (0, 1):
        before = table.detach().clone()
        gradient = torch.zeros(3, 2)
        gradient[row] = 1.0
        table.grad = gradient.to_sparse(1)
        optimizer.step()
        if any(not torch.equal(before[other], table[other]) for other in {0, 1, 2} - {row}):
            raise ConfigError(
                f"{where} changes rows of a table that have no gradient, and --pipeline has looked them up: "
                f"use {', '.join(FOR_SPARSE)}, or --serial"
            )


def _is_as_large(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something that the optimizer keeps has as many numbers as its parameter."""
    return any(
        isinstance(value, torch.Tensor) and value.numel() >= parameter.numel()
        for parameter, state in optimizer.state.items()
        for value in state.values()
    )


def _try(parsed: Spec, config: RunConfig, gradient: torch.Tensor, where: str) -> torch.optim.Optimizer:
    """The optimizer after a step with this gradient."""
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = gradient
    (optimizer,) = _made(parsed, [parameter], config.lr)
    try:
        optimizer.step()
    except Exception as error:
        raise ConfigError(f"{where}: {describe(error)}") from error
    return optimizer


def _check_shapes(parsed: Spec, config: RunConfig, model: nn.Module) -> None:
    """Make the optimizer of parameters without memory, in the shapes of those that are trained."""
    trained = [each for each in model.parameters() if each.requires_grad and not is_lazy(each)]
    shapes = [nn.Parameter(torch.empty(each.shape, dtype=each.dtype, device="meta")) for each in trained]
    try:
        _made(parsed, shapes, config.lr)
    except ConfigError as error:
        if not isinstance(error.__cause__, NotImplementedError):  # else it reads numbers, which are not there
            raise


def _parsed(config: RunConfig) -> Spec:
    parsed = spec.parse(config.optimizer, OPTIMIZERS, "--optimizer", "optimizer")
    if "lr" in parsed.options:
        raise ConfigError(f"--optimizer {parsed.text}: give the learning rate as --lr")
    if not parsed.name:
        return parsed
    defaults = {option.name: option.default for option in OPTIMIZERS[parsed.name].options}
    return replace(parsed, options=defaults | dict(parsed.options))


def _variant(parsed: Spec) -> Spec:
    """The same for tables with sparse gradients. Raises ConfigError where there is none."""
    if parsed.name not in FOR_SPARSE:
        raise ConfigError(f"{parsed.name} changes every row in every step")
    if parsed.options.get("momentum"):
        raise ConfigError("momentum changes every row in every step")
    return replace(parsed, factory=FOR_SPARSE[parsed.name])


def _made(parsed: Spec, parameters: list[nn.Parameter], lr: float) -> list[torch.optim.Optimizer]:
    """The optimizer of these parameters; none if there are none."""
    if not parameters:
        return []
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    if not checks.is_enabled():
        checks.disable()  # it is the default, but torch warns in Adagrad's step until somebody says so
    where = f"--optimizer {parsed.text}"
    factory = spec.load(parsed, where)
    if parsed.name:
        factory = eager(factory)
    first = next(iter(inspect.signature(factory).parameters), "params")
    made = spec.call(factory, parsed, where, {first: parameters, "lr": lr})
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"{where}: {parsed.factory} returned {type(made).__name__}, not an Optimizer")
    return [made]


def _tables(module: nn.Module) -> tuple[set[int], set[int]]:
    """The ids of the tables among the parameters, and of those with sparse gradients."""
    tables = placed_tables(module)
    return {id(part.weight) for part in tables}, {id(part.weight) for part in tables if part.sparse}


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
