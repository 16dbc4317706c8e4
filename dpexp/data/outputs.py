"""Outputs: what of a forward's outputs a loss is computed from, and the loss that they may hold."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dpexp.config.errors import ConfigError

NO_LOSS = (
    "for which there is no standard loss: name one with --loss module:function, or give the model a method "
    "loss(outputs, targets)"
)
"""The end of the error for outputs and targets without a loss."""


def logits(outputs: Any) -> Tensor:
    """The outputs if they are a tensor, else their key or attribute ``logits``, or their only item."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, list | tuple) and len(outputs) == 1:
        found = outputs[0]
    if isinstance(found, Tensor):
        return found
    found = type(outputs).__name__
    raise ConfigError(f"the model's output is a {found}, {NO_LOSS}, or return one tensor or 'logits'")


def loss_inside(outputs: Any) -> Tensor | None:
    """What a forward returns as its loss: the outputs, their entry or attribute ``loss``, or first item."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(found, list | tuple) and found:
        found = found[0]
    return found if isinstance(found, Tensor) else None
