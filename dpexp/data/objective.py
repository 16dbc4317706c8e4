"""Objective: the loss and the accuracy of a model on targets, and what the losses of shards weigh.

The loss is what ``--loss`` names, the model's method ``loss``, what its forward returns, or the standard one
(``losses``). The reduction decides how the losses of shards add up to that of the batch, and so do gradients:

    rows      a mean over the rows           weight of a shard: its rows / all rows
    tokens    a mean over tokens             its targets without PADDING / all of them, or ``loss_weight``
    sum       a sum                          1
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.config.words import plural
from dpexp.copies import TensorCopies
from dpexp.data.averages import counted, shares
from dpexp.data.batch import Batch
from dpexp.data.losses import class_accuracy, loss_inside, place_of_loss, standard_loss
from dpexp.devices import is_autocast_enabled
from dpexp.distributed.group import ProcessGroup

LOST = "replicas lose what a forward stores in an attribute: return what the loss of the model reads"
"""The note of an error in a loss that a single device has computed."""


class Objective:
    """``loss`` replaces the model's own. ``classes``, where known, are in the last dimension of outputs.

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
        self._loss = called if callable(called) else None
        self._accuracy = getattr(model, "accuracy", None)
        self._loss_weight = getattr(getattr(loss, "func", loss) or model, "loss_weight", None)
        self.classes = classes
        self.reduction = reduction or ("tokens" if callable(self._loss_weight) else "rows")
        self.is_method = isinstance(getattr(called, "__self__", None), nn.Module)
        self.is_inside = self._is_scalar = False
        self._place = 0
        self._fits: Any = None
        self._model = weakref.ref(model if model is not None else nn.Module())  # a sharded one must end

    # --- the loss ---

    @property
    def is_given(self) -> bool:
        """Whether there is a loss function: ``--loss``, or the model's method."""
        return self._loss is not None

    @property
    def note(self) -> str:
        """Which item of what the forward returns is the loss, where it is not the first; else empty."""
        return f"the loss is outputs[{self._place}] of the forward" if self.is_inside and self._place else ""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar. Raises ConfigError where the shapes do not match.

        Where a forward without shards gave a scalar, a vector has the loss of each shard.
        """
        if self.is_inside:
            found: Any = loss_inside(outputs, self._place)
        elif self._loss is None:
            found = standard_loss(outputs, targets, self.reduction, self.classes)
        else:
            self._fit(outputs)
            try:
                found = self._loss(outputs, targets)
            except Exception as error:
                if self.is_method and self._is_scalar:  # a single device has computed it
                    error.add_note(LOST)
                raise
        if self._is_scalar and isinstance(found, Tensor) and found.dim() == 1:
            others = [each for each in tensors.walk(outputs) if each.dim() > 1]
            found = self.of_shards(found, others or None if targets is None else targets)
        if isinstance(found, Tensor) and found.dim() == 0:
            return found
        kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"the loss must be a scalar tensor, the mean over the rows (or as --reduction says); found {kind}"
        )

    def on_one_device(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a forward without shards, which must be a scalar. Raises ConfigError.

        From then on it is known whether the forward returns the loss (``is_inside``): replicas that each do
        return a vector, and so does a single device that computes chunk by chunk.
        """
        if self._loss is None and not self._is_scalar:
            self._place = place_of_loss(outputs)
        inside = loss_inside(outputs, self._place)
        self.is_inside |= self._loss is None and inside is not None and inside.dim() == 0
        loss = self.loss(outputs, targets)
        self._is_scalar = True
        return loss

    def _fit(self, outputs: Any) -> None:
        """Take a copy of the loss whose tensors have the device and floating-point type of the outputs.

        Under autocast, which casts by itself, they keep their type.
        """
        like = next((each for each in tensors.walk(outputs) if each.is_floating_point()), None)
        if like is None or not isinstance(self._loss, nn.Module | partial):
            return
        dtype, is_cast = like.dtype, is_autocast_enabled(like.device.type)
        fits = type(like), like.device, None if is_cast else dtype

        def change(tensor: Tensor) -> Tensor:
            return (tensor if is_cast else tensors.cast(tensor, dtype)).to(like.device)

        if fits != self._fits:
            self._loss, self._fits = self._copied_loss(self._model(), change), fits

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """From 0 to 1; None for floating-point targets, unless the model has its own accuracy."""
        if callable(self._accuracy):
            return float(self._accuracy(outputs, targets))
        return class_accuracy(outputs, targets, self.classes)

    # --- what a loss keeps from call to call ---

    def of(self, model: nn.Module | None = None, device: torch.device | None = None) -> Objective:
        """That of a copy of the model, or of the same one: what its loss keeps from call to call is copied.

        A method of the model becomes that of the copy. A loss that cannot be copied is shared.
        """
        made = copy.copy(self)
        made._model, made._fits = self._model if model is None else weakref.ref(model), None
        if not isinstance(self._loss, FunctionType | BuiltinFunctionType | None):
            made._loss = self._copied_loss(made._model(), lambda tensor: tensor.to(device))
        return made

    def follow(self, other: Objective, device: torch.device) -> None:
        """Continue from what the loss of another one has kept so far."""
        self._loss, self._fits = other.of(self._model(), device)._loss, None

    def _copied_loss(self, model: nn.Module | None, change: Callable[[Tensor], Tensor]) -> Any:
        """The loss with copies of its tensors, changed, and this model for its own; itself if not copied."""
        parts, own = _parts(model), _parts(self._model())
        memo: dict[int, Any] = {id(part): parts[name] for name, part in own.items() if name in parts}
        for each in self._loss.parameters() if isinstance(self._loss, nn.Module) else ():
            memo.setdefault(id(each), nn.Parameter(change(each.detach().clone()), each.requires_grad))
        with suppress(Exception), TensorCopies(change):  # of any kind: the user's
            return copy.deepcopy(self._loss, memo)
        return self._loss

    # --- what shards weigh ---

    def of_shards(self, losses: Tensor, targets: Any) -> Tensor:
        """The loss of the batch from those of its shards, as ``Tensor.chunk`` splits it.

        Without targets, which have the rows of all shards, other outputs may stand for them.
        """
        rows = len(_first(targets))
        size = -(-rows // max(1, len(losses)))
        starts = range(0, rows, max(1, size))
        if len(starts) != len(losses):
            raise ConfigError(f"the loss has shape {tuple(losses.shape)}, the batch {plural(rows, 'row')}")
        pieces = [tensors.map_tensors(itemgetter(slice(at, at + size)), targets) for at in starts]
        like = losses.to(torch.promote_types(losses.dtype, torch.float32))
        amounts = torch.stack([torch.as_tensor(self._count(piece)).to(like) for piece in pieces])
        weights = amounts if self.reduction == "sum" else amounts / amounts.sum()
        return torch.where(weights > 0, like, 0) @ weights  # the mean over no token is NaN

    def weights(self, parts: Sequence[Batch]) -> list[float]:
        """The weights of all parts of a batch."""
        return shares([self._amount(part) for part in parts], self.reduction == "sum")

    def weighted(self, batch: Batch, group: ProcessGroup) -> Batch:
        """A rank's part of a batch with its weight in the loss; every rank must call this."""
        if self.reduction == "rows" or group.dp_size == 1:
            return batch
        amount, total = self._amount(batch), 1.0
        if self.reduction == "tokens":
            total = sum(group.one_of_each_dp_rank(group.all_gather(amount)))
        return replace(batch, share=amount / total if total else 0.0)

    def tokens(self, batch: Batch) -> float | None:
        """The tokens of this rank's rows; None for a loss that does not count them."""
        counts = self.reduction == "tokens" and batch.targets is not None
        return self._amount(batch) if counts else None

    def _amount(self, part: Batch) -> float:
        """What the loss of a part counts by; nothing of a rank without rows."""
        if not part.rows or self.reduction == "rows":
            return float(part.rows)
        return float(self._count(part.targets))

    def _count(self, targets: Any) -> Any:
        """What the loss of these targets counts by."""
        if self.reduction != "tokens":
            return 1.0 if self.reduction == "sum" else float(len(_first(targets)))
        if callable(self._loss_weight):
            return self._loss_weight(targets)
        return counted(_first(targets))


def _parts(model: nn.Module | None) -> dict[str, nn.Module | nn.Parameter]:
    """The modules and parameters of a model, by name."""
    return {} if model is None else dict(model.named_modules()) | dict(model.named_parameters())


def _first(targets: Any) -> Tensor:
    """The first tensor, which has the rows and the tokens of all."""
    found = next(tensors.walk(targets), None)
    if found is None:
        raise ConfigError(
            "replicas return their losses alone, and the data has no targets to weight these by: give the "
            "labels as targets, too, or return an output with the rows beside the loss"
        )
    return found
