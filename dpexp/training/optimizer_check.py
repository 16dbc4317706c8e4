"""Whether an optimizer can train a model: it is tried on small parameters, before a run opens."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError, describe, text_of
from dpexp.strategies.modules.tables import PlacedTable, is_mapped
from dpexp.training.optimizer_choice import OptimizerChoice
from dpexp.training.optimizer_names import FOR_SPARSE


def check_optimizer(choice: OptimizerChoice, model: nn.Module, *, looks_ahead: bool = False) -> None:
    """Raises ConfigError for an optimizer or option that does not exist, or that cannot train the model.

    The optimizer takes a step on small parameters, with a sparse gradient where the model has sparse tables,
    and one of the user's is made for the model's shapes. ``looks_ahead``: rows of tables are looked up before
    the steps that precede their batch.
    """
    if choice.name == "sgd" and not choice.factory.options:
        return
    _try(choice, torch.zeros(2, 2))
    if not choice.name:
        _check_shapes(choice, model)
    if choice.is_for_every_table:
        _try(choice.for_sparse(), torch.zeros(2, 2))
    names = [
        name or "the model"
        for name, part in model.named_modules()
        if isinstance(part, PlacedTable) and part.sparse and part.weight.requires_grad
    ]
    if names:
        _check_sparse(choice, listed(names), model, looks_ahead=looks_ahead)


def _check_sparse(choice: OptimizerChoice, tables: str, model: nn.Module, *, looks_ahead: bool) -> None:
    """Raises ConfigError for an optimizer that cannot train these tables, which have sparse gradients."""
    where = choice.factory.where
    try:
        variant = choice.for_sparse() if choice.name else choice
        kept = _try(variant, torch.ones(2, 2).to_sparse(1))
    except ConfigError as error:
        raise ConfigError(
            f"{where} cannot take the sparse gradients of {tables} "
            f"({str(error).removeprefix(where + ': ')}): use {', '.join(FOR_SPARSE)}, or dense gradients"
        ) from error
    if any(is_mapped(parameter) for parameter in model.parameters()) and _is_as_large(kept):
        raise ConfigError(
            f"{where} keeps as many numbers in memory as {tables} has in a file: use rowwise_adagrad or sgd"
        )
    if looks_ahead:
        _check_other_rows(variant)


def _check_other_rows(choice: OptimizerChoice) -> None:
    """Raises ConfigError for an optimizer whose step changes rows of a table that have no gradient."""
    table = nn.Parameter(torch.ones(3, 2))
    (optimizer,) = choice.make([table])
    for row in (0, 1):
        before = table.detach().clone()
        gradient = torch.zeros(3, 2)
        gradient[row] = 1.0
        table.grad = gradient.to_sparse(1)
        optimizer.step()
        if any(not torch.equal(before[other], table[other]) for other in {0, 1, 2} - {row}):
            raise ConfigError(
                f"{choice.factory.where} changes rows of a table that have no gradient, and --pipeline has "
                f"looked them up: use {', '.join(FOR_SPARSE)}, or --serial"
            )


def _is_as_large(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something that the optimizer keeps has as many numbers as its parameter."""
    return any(
        isinstance(value, torch.Tensor) and value.numel() >= parameter.numel()
        for parameter, state in optimizer.state.items()
        for value in state.values()
    )


def _try(choice: OptimizerChoice, gradient: torch.Tensor) -> torch.optim.Optimizer:
    """The optimizer after a step with this gradient ``(2, 2)``."""
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = gradient
    (optimizer,) = choice.make([parameter])
    try:
        optimizer.step()
    except Exception as error:
        raise ConfigError(f"{choice.factory.where}: {describe(error)}") from error
    return optimizer


def _check_shapes(choice: OptimizerChoice, model: nn.Module) -> None:
    """Make the optimizer of parameters without memory, in the shapes of those that are trained.

    One that reads numbers, which are not there, gets a copy of theirs.
    """
    trained = [each for each in model.parameters() if each.requires_grad and not is_lazy(each)]
    try:
        choice.make([nn.Parameter(torch.empty_like(each, device="meta")) for each in trained])
    except ConfigError as error:
        if "meta" not in text_of(error.__cause__ or error).lower():
            raise
        choice.make([nn.Parameter(each.detach().clone()) for each in trained])
