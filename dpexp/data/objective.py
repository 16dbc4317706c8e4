"""Objective: the loss and the accuracy of a model on targets.

The model's own where it has them (see ``dpexp.models``), else mean squared error for floating-point
targets and cross entropy for integer ones. Steps of class ``PADDING`` do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpexp.config import ConfigError
from dpexp.config.features import PADDING


class Objective:
    """What a model is trained for. ``classes``, where known, is checked against the model's outputs.

    ``loss``, where it is given, wins over the model's own.
    """

    def __init__(
        self, model: nn.Module, classes: int | None = None, loss: Callable[..., Any] | None = None
    ) -> None:
        self._loss = loss or getattr(model, "loss", None)
        self._accuracy = getattr(model, "accuracy", None)
        self.classes = classes

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar: the mean over the rows. Raises ConfigError where outputs and targets do not fit."""
        if callable(self._loss):
            return _scalar(self._loss(outputs, targets))
        if not isinstance(targets, Tensor):
            raise ConfigError(
                f"the targets are a {type(targets).__name__}, for which there is no standard loss: "
                "name one with --loss module:function, or give the model a method loss(outputs, targets)"
            )
        scores = logits(outputs)
        if targets.is_floating_point():
            return functional.mse_loss(_like(scores, targets), targets)
        losses = functional.cross_entropy(
            *self._classified(scores, targets),
            ignore_index=PADDING,
            reduction="mean" if targets.dim() == 1 else "none",
        )
        return losses if targets.dim() == 1 else _mean_of_rows(losses.view(targets.shape), targets)

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """From 0 to 1; None for floating-point targets, unless the model says what it means."""
        if callable(self._accuracy):
            return float(self._accuracy(outputs, targets))
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None
        counted = targets != PADDING
        hits = (logits(outputs).argmax(dim=-1) == targets) & counted
        return hits.sum().item() / max(1, int(counted.sum()))

    def _classified(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """``(…, classes)`` and ``(…)`` as ``(n, classes)`` and ``(n,)``."""
        if scores.dim() == 0 or scores.shape[:-1] != targets.shape:
            raise ConfigError(
                f"the model's outputs {tuple(scores.shape)} do not fit the class targets "
                f"{tuple(targets.shape)}: they must be {(*targets.shape, 'classes')}"
            )
        if self.classes is not None and scores.shape[-1] < self.classes:
            raise ConfigError(
                f"the data has {self.classes} classes and the model gives {scores.shape[-1]} outputs: "
                f"give it {self.classes} (out={self.classes} for a model of dpexp)"
            )
        return scores.reshape(-1, scores.shape[-1]), targets.reshape(-1).long()


def logits(outputs: Any) -> Tensor:
    """The tensor among the outputs: itself, ``logits`` of a dict or object, or the only one of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, Tensor):
        return named
    if isinstance(outputs, list | tuple) and len(outputs) == 1 and isinstance(outputs[0], Tensor):
        return outputs[0]
    raise ConfigError(
        f"the model's output is a {type(outputs).__name__}, for which there is no standard loss: return one "
        "tensor or something with 'logits', name a loss with --loss module:function, or give the model a "
        "method loss(outputs, targets)"
    )


def _mean_of_rows(losses: Tensor, targets: Tensor) -> Tensor:
    """The mean over rows of each row's mean over its steps, padding left out: shards of it add up by rows."""
    counted = (targets != PADDING).flatten(1).sum(dim=1).clamp(min=1)
    return (losses.flatten(1).sum(dim=1) / counted).mean()


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the targets' shape; only dimensions of size 1 may differ."""
    if outputs.shape == targets.shape:
        return outputs
    if outputs.squeeze().shape != targets.squeeze().shape:
        raise ConfigError(
            f"the model's outputs {tuple(outputs.shape)} do not fit the targets {tuple(targets.shape)}: "
            "mean squared error needs the same shape"
        )
    return outputs.reshape(targets.shape)


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ConfigError(f"the loss must be a scalar tensor, the mean over the rows; found {found}")
    return loss
