"""Objective: the loss and the accuracy of a model on targets.

These are the model's own where it has them (see ``dpexp.models``). Otherwise the loss is mean squared error
for floating-point targets and cross entropy for integer ones. Steps of class ``PADDING`` do not count.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from dpexp.config import ConfigError
from dpexp.config.features import PADDING

_NO_LOSS = (
    "for which there is no standard loss: name one with --loss module:function, or give the model a method "
    "loss(outputs, targets)"
)


_OF_OUTPUTS = "the loss is the mean of the squared outputs; --loss names another"


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether the function can be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):  # ValueError: a function without a signature
        return False
    return True


class Objective:
    """``loss`` replaces the model's own. ``classes``, where known, is checked against the model's outputs."""

    def __init__(
        self, model: nn.Module, classes: int | None = None, loss: Callable[..., Any] | None = None
    ) -> None:
        self._loss = loss or getattr(model, "loss", None)
        self._accuracy = getattr(model, "accuracy", None)
        self.classes = classes

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar: the mean over the rows. Raises ConfigError where the shapes do not match.

        Without targets (None), a loss may take the outputs alone; the standard one is their mean square.
        """
        if targets is None:
            return self._loss_of(outputs)
        if callable(self._loss):
            return _check_scalar(self._loss(outputs, targets))
        if not isinstance(targets, Tensor):
            raise ConfigError(f"the targets are a {type(targets).__name__}, {_NO_LOSS}")
        scores = logits(outputs)
        if targets.is_floating_point():
            return functional.mse_loss(_reshape_as(scores, targets), targets)
        self._check_classes(scores, targets)
        scores, classes = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1).long()
        reduction = "mean" if targets.dim() == 1 else "none"
        losses = functional.cross_entropy(scores, classes, ignore_index=PADDING, reduction=reduction)
        return losses if targets.dim() == 1 else _mean_of_rows(losses.view(targets.shape), targets)

    @property
    def without_targets(self) -> str:
        """What the loss is where the data has no targets."""
        own = "the loss is that of the outputs" if callable(self._loss) else _OF_OUTPUTS
        return f"the data has no targets: {own}"

    def _loss_of(self, outputs: Any) -> Tensor:
        if not callable(self._loss):
            return logits(outputs).square().mean()
        return _check_scalar(self._loss(outputs) if _takes_one(self._loss) else self._loss(outputs, None))

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """From 0 to 1; None for floating-point targets, unless the model has its own accuracy."""
        if callable(self._accuracy):
            return float(self._accuracy(outputs, targets))
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None
        counted = targets != PADDING
        hits = (logits(outputs).argmax(dim=-1) == targets) & counted
        return hits.sum().item() / max(1, int(counted.sum()))

    def _check_classes(self, scores: Tensor, targets: Tensor) -> None:
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
    raise ConfigError(f"the model's output is a {found}, {_NO_LOSS}, or return one tensor or 'logits'")


def _mean_of_rows(losses: Tensor, targets: Tensor) -> Tensor:
    """The mean over rows of each row's mean over its steps without padding: the losses of shards add up."""
    counted = (targets != PADDING).flatten(1).sum(dim=1).clamp(min=1)
    return (losses.flatten(1).sum(dim=1) / counted).mean()


def _reshape_as(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the targets' shape; only dimensions of size 1 may differ."""
    if outputs.shape == targets.shape:
        return outputs
    if outputs.squeeze().shape != targets.squeeze().shape:
        raise ConfigError(
            f"the model's outputs {tuple(outputs.shape)} do not fit the targets {tuple(targets.shape)}: "
            "mean squared error needs the same shape"
        )
    return outputs.reshape(targets.shape)


def _check_scalar(loss: Any) -> Tensor:
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise ConfigError(f"the loss must be a scalar tensor, the mean over the rows; found {found}")
