"""Losses: the standard loss of outputs and targets, and the loss that a forward returns itself.

targets           outputs                              standard loss
floating-point    of the same shape                    mean squared error
integers          (*targets, classes), or              cross entropy; steps of class PADDING do not count
                  (batch, classes, *steps)
none              any                                  the mean of their squares
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from dpexp.config.errors import ConfigError
from dpexp.config.features import PADDING

NO_LOSS = (
    "for which there is no standard loss: name one with --loss module:function, or give the model a method "
    "loss(outputs, targets)"
)
"""The end of the error for outputs and targets without a loss."""
NO_TARGETS = (
    "the data has no targets: without --loss, the loss is the mean of the squared outputs, or what the "
    "forward returns"
)
"""The note of a run whose data has none."""


def logits(outputs: Any) -> Tensor:
    """The outputs if they are a tensor, else their key or attribute ``logits``, or their only tensor.

    Raises ConfigError where there is no such tensor ``(rows, …)``.
    """
    if isinstance(outputs, Tensor):
        return outputs
    tensor = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    items = [item for item in outputs if item is not None] if isinstance(outputs, list | tuple) else []
    if tensor is None and len(items) == 1:
        tensor = items[0]
    if isinstance(tensor, Tensor):
        return tensor
    kind = type(outputs).__name__
    raise ConfigError(f"the model's output is a {kind}, {NO_LOSS}, or return one tensor or 'logits'")


def loss_inside(outputs: Any, place: int = 0) -> Tensor | None:
    """What a forward returns as its loss: the outputs, their entry or attribute ``loss``, or an item.

    A scalar, or ``(replicas,)`` with the loss of each; another tensor where the forward returns no loss.
    """
    loss = _named_loss(outputs)
    if isinstance(loss, list | tuple) and loss:
        loss = loss[place] if place < len(loss) else None  # in eval mode there may be no loss
    return loss if isinstance(loss, Tensor) else None


def place_of_loss(outputs: Any) -> int:
    """Which item of the outputs of one device is the loss: the scalar, or the one with a gradient.

    Raises ConfigError for several scalars with a gradient.
    """
    items = _named_loss(outputs)
    items = items if isinstance(items, list | tuple) else ()
    scalars = {
        place: item
        for place, item in enumerate(items)
        if isinstance(item, Tensor) and item.dim() == 0 and item.is_floating_point()
    }
    trained = [place for place, item in scalars.items() if item.requires_grad]
    if len(trained) > 1:
        raise ConfigError(
            f"the forward returns the scalars {', '.join(f'outputs[{place}]' for place in trained)}, and one "
            "is the loss: name it with --loss, as lambda outputs, targets: outputs[0], or return a dict that "
            "has it as 'loss', or detach the others"
        )
    return next(iter(trained or scalars), 0)


def _named_loss(outputs: Any) -> Any:
    """The entry or attribute ``loss`` of outputs; outputs without one themselves, but for a dict."""
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)


def standard_loss(outputs: Any, targets: Any, reduction: str, classes: int | None) -> Tensor:
    """The scalar of the table above, reduced as ``reduction`` says. Raises ConfigError for other shapes.

    ``classes`` is how many the data has, where that is known. By rows, the loss of a batch of steps is the
    mean over rows of each row's mean over its steps: so the losses of shards add up.
    """
    scores, by = logits(outputs), "sum" if reduction == "sum" else "mean"
    if targets is None:
        return scores.square().sum() if by == "sum" else scores.square().mean()
    if not isinstance(targets, Tensor):
        raise ConfigError(f"the targets are a {type(targets).__name__}, {NO_LOSS}")
    if targets.is_floating_point():
        if scores.shape != targets.shape and scores.squeeze().shape != targets.squeeze().shape:
            raise ConfigError(
                f"the model's outputs {tuple(scores.shape)} do not fit the targets {tuple(targets.shape)}: "
                "mean squared error needs the same shape"
            )
        return functional.mse_loss(scores.reshape(targets.shape), targets, reduction=by)
    scores = class_scores(scores, targets, classes)
    by = "none" if targets.dim() > 1 and reduction == "rows" else by
    flat = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1).long()
    losses = functional.cross_entropy(*flat, ignore_index=PADDING, reduction=by)
    if by != "none":
        return losses
    counted = (targets != PADDING).flatten(1).sum(dim=1).clamp(min=1)
    return (losses.view(targets.shape).flatten(1).sum(dim=1) / counted).mean()


def class_scores(scores: Tensor, targets: Tensor, classes: int | None) -> Tensor:
    """The scores as ``(*targets.shape, classes)``. Raises ConfigError where they do not fit.

    They fit with the classes in the last dimension or, as in PyTorch's cross entropy, in dimension 1. Where
    both fit, data with a known number of classes (a source of dpexp) has them in the last.
    """
    is_last = scores.dim() > 0 and scores.shape[:-1] == targets.shape
    is_second = scores.dim() > 2 and scores.shape[:1] + scores.shape[2:] == targets.shape
    if is_last and is_second and classes is None:
        raise ConfigError(
            f"the classes of the model's outputs {tuple(scores.shape)} may be in dimension 1 or in the last, "
            f"with targets {tuple(targets.shape)}: name a loss with --loss"
        )
    if not is_last and not is_second:
        raise ConfigError(
            f"the model's outputs {tuple(scores.shape)} do not fit the class targets "
            f"{tuple(targets.shape)}: they must be {(*targets.shape, 'classes')}, or have the classes in "
            "dimension 1"
        )
    scores = scores if is_last else scores.movedim(1, -1)
    if classes is not None and scores.shape[-1] < classes:
        raise ConfigError(
            f"the data has {classes} classes and the model gives {scores.shape[-1]} outputs: "
            f"give it {classes} (out={classes} for a model of dpexp)"
        )
    return scores


def class_accuracy(outputs: Any, targets: Any, classes: int | None) -> float | None:
    """The fraction of integer targets with the largest output; None for other targets."""
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    counted = targets != PADDING
    predicted = class_scores(logits(outputs), targets, classes).argmax(dim=-1)
    return int(((predicted == targets) & counted).sum()) / max(1, int(counted.sum()))
