"""Objective: the loss and the accuracy of a model on targets.

These are the model's own where it has them (see ``dpexp.models``), or what its forward returns. Otherwise the
loss is mean squared error for floating-point targets and cross entropy for integer ones. Steps of class
``PADDING`` do not count.

The reduction decides how the losses of shards add up to that of the batch, and so do their gradients:

    rows      a mean over the rows           weight of a shard: its rows / all rows
    tokens    a mean over tokens             its targets without PADDING / all of them, or ``loss_weight``
    sum       a sum                          1
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpexp import tensors
from dpexp.config.errors import ConfigError, plural
from dpexp.config.features import PADDING
from dpexp.data.batch import Batch
from dpexp.data.loss_tensors import LossTensors, TensorCopies
from dpexp.data.outputs import NO_LOSS, logits, loss_inside
from dpexp.distributed.group import ProcessGroup

_OF_OUTPUTS = "the loss is the mean of the squared outputs, or what the forward returns; --loss names another"


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether the function can be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):  # ValueError: a function without a signature
        return False
    return True


class Objective:
    """``loss`` replaces the model's own. ``classes``, where known, is checked against the model's outputs.

    Without a ``reduction`` it is that of a function ``loss_weight(targets)``, an attribute of the loss or
    the model, which returns what the loss divides by; without one of these, ``rows``.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        classes: int | None = None,
        loss: Callable[..., Any] | None = None,
        reduction: str = "",
    ) -> None:
        called = loss or getattr(model, "loss", None)
        self._loss = LossTensors(called) if callable(called) else None
        self._accuracy = getattr(model, "accuracy", None)
        self._loss_weight = getattr(getattr(loss, "func", loss) or model, "loss_weight", None)
        self.classes = classes
        self.reduction = reduction or ("tokens" if callable(self._loss_weight) else "rows")
        self._is_inside = self._is_scalar = False
        self.is_method = isinstance(getattr(called, "__self__", None), nn.Module)
        self._model = weakref.ref(model if model is not None else nn.Module())  # a sharded one must end

    def of(self, model: nn.Module | None = None, device: torch.device | None = None) -> Objective:
        """That of a copy of the model, or of the same one: what its loss keeps from call to call is copied.

        A method of the model becomes that of the copy. A loss that cannot be copied is shared.
        """
        model = self._model() if model is None else model
        parts, own = _parts(model), _parts(self._model())
        memo = {id(part): parts[name] for name, part in own.items() if name in parts}
        try:
            with TensorCopies(lambda tensor: tensor.to(device)):
                made = copy.deepcopy(self, memo)
        except Exception:  # of any kind: it is the user's loss
            made = copy.copy(self)
        if model is not None:
            made._model = weakref.ref(model)
        return made

    def follow(self, other: Objective, device: torch.device) -> None:
        """Go on from what the loss of another one has kept so far."""
        self._loss = other.of(self._model(), device)._loss

    def on_one_device(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a forward without shards, which must be a scalar. Raises ConfigError.

        From then on it is known whether the forward returns the loss: replicas that each do return a vector,
        and so does a single device that computes chunk by chunk.
        """
        inside = loss_inside(outputs)
        self._is_inside |= self._loss is None and inside is not None and inside.dim() == 0
        loss = self.loss(outputs, targets)
        self._is_scalar = True
        return loss

    @property
    def is_inside(self) -> bool:
        """Whether the forward returns the loss; known after ``on_one_device``."""
        return self._is_inside

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar. Raises ConfigError where the shapes do not match.

        Without targets (None), a loss may take the outputs alone; the standard one is their mean square.
        """
        loss = self._compute(outputs, targets)
        is_vector = isinstance(loss, Tensor) and loss.dim() == 1
        return self.of_shards(loss, targets) if is_vector and self._is_scalar else _check_scalar(loss)

    def of_shards(self, losses: Tensor, targets: Any) -> Tensor:
        """The loss of the batch from those of its shards, as ``Tensor.chunk`` splits it."""
        rows = len(_first(targets))
        size = -(-rows // max(1, len(losses)))
        starts = range(0, rows, max(1, size))
        if len(starts) != len(losses):
            raise ConfigError(f"the loss has shape {tuple(losses.shape)}, the batch {plural(rows, 'row')}")
        pieces = [tensors.map_tensors(itemgetter(slice(start, start + size)), targets) for start in starts]
        like = losses.to(torch.promote_types(losses.dtype, torch.float32))
        amounts = torch.stack([torch.as_tensor(self._amount(piece)).to(like) for piece in pieces])
        weights = amounts if self.reduction == "sum" else amounts / amounts.sum()
        return torch.where(weights > 0, like, 0) @ weights  # the mean over no token is NaN

    def weighted(self, batch: Batch, group: ProcessGroup) -> Batch:
        """A rank's part of a batch with its weight in the loss; every rank must call this."""
        if self.reduction == "rows" or group.dp_size == 1:
            return batch
        amount = float(self._amount(batch.targets)) if batch.rows else 0.0
        total = 1.0
        if self.reduction == "tokens":
            by_rank = group.all_gather_numbers([amount])
            total = sum(number for (number,) in group.one_of_each_dp_rank(by_rank))
        return replace(batch, share=amount / total if total else 0.0)

    def tokens(self, batch: Batch) -> float | None:
        """The tokens of this rank's rows; None for a loss that does not count them."""
        if self.reduction != "tokens" or batch.targets is None:
            return None
        return float(self._amount(batch.targets)) if batch.rows else 0.0

    def weights(self, parts: Sequence[Batch]) -> list[float]:
        """The weights of all parts of a batch."""
        if self.reduction == "rows":
            return [part.rows / sum(each.rows for each in parts) for part in parts]
        amounts = [float(self._amount(part.targets)) for part in parts]
        return amounts if self.reduction == "sum" else [each / sum(amounts) for each in amounts]

    def _amount(self, targets: Any) -> Any:
        """What the loss of these targets counts by."""
        if self.reduction != "tokens":
            return 1.0 if self.reduction == "sum" else float(len(_first(targets)))
        if callable(self._loss_weight):
            return self._loss_weight(targets)
        first = _first(targets)
        return first.numel() if first.is_floating_point() else (first != PADDING).sum()

    def _compute(self, outputs: Any, targets: Any) -> Any:
        if self._is_inside:
            return loss_inside(outputs)
        if targets is None:
            return self._loss_of(outputs)
        if self._loss is None:
            return self._standard(outputs, targets)
        return self._loss.beside(outputs)(outputs, targets)

    def _standard(self, outputs: Any, targets: Any) -> Tensor:
        if not isinstance(targets, Tensor):
            raise ConfigError(f"the targets are a {type(targets).__name__}, {NO_LOSS}")
        scores = logits(outputs)
        if targets.is_floating_point():
            return functional.mse_loss(_reshape_as(scores, targets), targets, reduction=self._torch_reduction)
        self._check_classes(scores, targets)
        scores, classes = scores.reshape(-1, scores.shape[-1]), targets.reshape(-1).long()
        by_rows = targets.dim() > 1 and self.reduction == "rows"
        reduction = "none" if by_rows else self._torch_reduction
        losses = functional.cross_entropy(scores, classes, ignore_index=PADDING, reduction=reduction)
        return _mean_of_rows(losses.view(targets.shape), targets) if by_rows else losses

    @property
    def _torch_reduction(self) -> str:
        return "sum" if self.reduction == "sum" else "mean"

    @property
    def without_targets(self) -> str:
        """What the loss is where the data has no targets."""
        own = "the loss is that of the outputs" if self._loss is not None else _OF_OUTPUTS
        return f"the data has no targets: {own}"

    def _loss_of(self, outputs: Any) -> Any:
        if self._loss is None:
            squares = logits(outputs).square()
            return squares.sum() if self.reduction == "sum" else squares.mean()
        loss = self._loss.beside(outputs)
        return loss(outputs) if _takes_one(loss) else loss(outputs, None)

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


def _parts(model: nn.Module | None) -> dict[str, nn.Module | nn.Parameter]:
    """The modules and parameters of a model, by name."""
    return {} if model is None else dict(model.named_modules()) | dict(model.named_parameters())


def _first(targets: Any) -> Tensor:
    """The first tensor, which has the rows and the tokens of all."""
    found = next(tensors.walk(targets), None)
    if found is None:
        raise ConfigError(
            "replicas return their losses, and the data has no targets to weight these by: give the labels "
            "as targets, too, or return the outputs alone and name the loss with --loss"
        )
    return found


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
    raise ConfigError(
        f"the loss must be a scalar tensor, the mean over the rows (or as --reduction says); found {found}"
    )
