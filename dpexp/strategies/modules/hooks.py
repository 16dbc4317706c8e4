"""Hooks on parameters: ``Tensor.register_hook`` and ``Tensor.register_post_accumulate_grad_hook``.

They belong to the tensor, not to the module: ``copy.deepcopy`` and layouts that make new parameters lose them
without a word. Layouts that keep the parameters of the model (all but shards) keep their hooks.
"""

import copy
from typing import Any

import torch
from torch import nn

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError

_KINDS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}
"""Where a tensor keeps its hooks, and the method that adds one."""


def hooked_parameters(model: nn.Module) -> list[str]:
    """The names of the parameters that have hooks."""
    return [
        name for name, tensor in model.named_parameters() if any(getattr(tensor, kind) for kind in _KINDS)
    ]


def check_no_hooks(model: nn.Module, where: str) -> None:
    """Raises ConfigError for a parameter with a hook, which a layout that shards it would lose."""
    names = hooked_parameters(model)
    if names:
        raise ConfigError(
            f"{where} replaces parameters by their shards, which lose the hooks of {listed(names)}: "
            "remove the hooks (change the gradient in the module or the loss), or use another strategy"
        )


def carry_hooks(original: torch.Tensor, copied: torch.Tensor, memo: dict[int, Any]) -> None:
    """Register the hooks of a parameter on its copy; a bound method becomes that of the copied module."""
    for kind, register in _KINDS.items():
        for hook in (getattr(original, kind) or {}).values():
            if copied.requires_grad:
                getattr(copied, register)(copy.deepcopy(hook, memo))
