"""Whether an optimizer can train a model: it is tried on small parameters, before a run opens."""

import torch
from torch import nn

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError, describe
from dpexp.strategies.modules.tables import PlacedTable
from dpexp.training.optimizer_choice import OptimizerChoice
from dpexp.training.optimizer_names import FOR_SPARSE


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
