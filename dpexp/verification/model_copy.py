"""Model copy: a model again, in another floating-point type, with the hooks on its parameters."""

import copy
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.strategies.modules import carry_hooks


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A deep copy with parameters and buffers of this type; each tensor is cast while it is copied."""
    memo = first_copies(model)
    originals = list(model.parameters())
    for tensor in (*originals, *model.buffers()):
        if type(tensor) in (nn.Parameter, torch.Tensor) and tensor.is_leaf:
            memo[id(tensor)] = _copied(tensor, dtype)
    made = tensors.cast_module(copy.deepcopy(model, memo), dtype)
    for original in originals:
        carry_hooks(original, memo[id(original)], memo)
    return made


def check_copyable(model: nn.Module) -> None:
    """Raises what ``copied`` would raise; makes no copies of parameters and buffers."""
    copy.deepcopy(model, first_copies(model) | {id(each): each for each in model.parameters()})


def check_not_scripted(model: nn.Module) -> None:
    """Raises ConfigError for a module of torch.jit, which takes no hooks of Python."""
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            what = f"{name} of the model" if name else "the model"
            raise ConfigError(
                f"{what} is a module of torch.jit: give it as it was written; torch.compile compiles it"
            )


def first_copies(model: nn.Module) -> dict[int, Any]:
    """Copies of weights that a hook has computed, as of ``spectral_norm``, which ``deepcopy`` refuses."""
    values = [value for module in model.modules() for value in vars(module).values()]
    computed = [value for value in values if isinstance(value, torch.Tensor) and not value.is_leaf]
    return {id(value): value.detach().clone() for value in computed}


def _copied(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    new: torch.Tensor = tensors.cast(tensor.detach(), dtype)
    if new.data_ptr() == tensor.data_ptr():
        new = new.clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)
