"""Objective: the loss and the accuracy of a model on targets, and what the losses of shards weigh.

The loss is what ``--loss`` names, the model's method ``loss``, what its forward returns, or the standard one
(``losses``). The reduction decides how the losses of shards add up to that of the batch, and so do gradients:

    rows      a mean over the rows           weight of a shard: its rows / all rows
    tokens    a mean over tokens             its targets without PADDING / all of them, or ``loss_weight``
    sum       a sum                          1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.config.features import PADDING
from dpexp.config.words import plural
from dpexp.copies import copied_module
from dpexp.data.batch import Batch
from dpexp.data.criterion import Criterion
from dpexp.data.losses import class_accuracy, loss_inside, place_of_loss, standard_loss
from dpexp.distributed.group import ProcessGroup

LIMIT = 1e-6
"""A larger relative difference is not rounding in float64; for a loss in a shorter type 1000 of its steps."""
KINDS = {"rows": "a mean over rows", "tokens": "a mean over what it is weighted by", "sum": "a sum over rows"}
LOST = "replicas lose what a forward stores in an attribute: return what the loss of the model reads"
"""The note of an error in a loss that a single device has computed."""


@dataclass(frozen=True)
class Objective:
    """``criterion`` replaces the standard loss. ``classes``, if known, are in the last dimension of outputs.

    ``loss_weight(targets)`` returns what the loss divides by, for the reduction ``tokens``. Once it
    ``is_probed``, it knows the ``place`` of the loss in what the forward returns; None where it is not there.
    """

    classes: int | None = None
    reduction: str = "rows"
    criterion: Criterion | None = None
    own_accuracy: Callable[..., Any] | None = None
    loss_weight: Callable[[Any], Any] | None = None
    place: int | None = None
    is_probed: bool = False

    @classmethod
    def of(
        cls,
        model: nn.Module | None = None,
        classes: int | None = None,
        loss: Callable[..., Any] | None = None,
        reduction: str = "",
    ) -> Objective:
        """That of a model, whose own loss ``loss`` replaces.

        Without a ``reduction`` it is ``tokens`` where the loss or the model has a function
        ``loss_weight(targets)``, else ``rows``.
        """
        function = loss or getattr(model, "loss", None)
        weight = getattr(getattr(loss, "func", loss) or model, "loss_weight", None)
        weight, accuracy = (
            each if callable(each) else None for each in (weight, getattr(model, "accuracy", None))
        )
        criterion = Criterion(function, model) if callable(function) else None
        return cls(classes, reduction or ("tokens" if weight else "rows"), criterion, accuracy, weight)

    def copied(self, model: nn.Module | None = None, device: torch.device | None = None) -> Objective:
        """That of a copy of the model, or of the same: what its loss keeps between calls is copied."""
        return replace(self, criterion=self.criterion and self.criterion.copied(model, device))

    # --- the loss ---

    @property
    def is_given(self) -> bool:
        """Whether there is a loss function: ``--loss``, or the model's method."""
        return self.criterion is not None

    @property
    def note(self) -> str:
        """Which item of what the forward returns is the loss, where it is not the first; else empty."""
        return f"the loss is outputs[{self.place}] of the forward" if self.place else ""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """A scalar. Raises ConfigError where the shapes do not match.

        Once it is probed, a vector has the loss of each shard: replicas that each return a scalar give one,
        and so does a single device that computes chunk by chunk.
        """
        if self.place is not None:
            found: Any = loss_inside(outputs, self.place)
        elif self.criterion is None:
            found = standard_loss(outputs, targets, self.reduction, self.classes)
        else:
            try:
                found = self.criterion(outputs, targets)
            except Exception as error:
                if self.criterion.is_method and self.is_probed:  # a single device has computed it
                    error.add_note(LOST)
                raise
        if self.is_probed and isinstance(found, Tensor) and found.dim() == 1:
            others = [each for each in tensors.walk(outputs) if each.dim() > 1]
            found = self.of_shards(found, others or None if targets is None else targets)
        if isinstance(found, Tensor) and found.dim() == 0:
            return found
        kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"the loss must be a scalar tensor, the mean over the rows (or as --reduction says); found {kind}"
        )

    def probed(self, outputs: Any, targets: Any) -> tuple[Objective, Tensor]:
        """The loss of a forward without shards, a scalar, and the objective that knows what it returns.

        Raises ConfigError.
        """
        if self.is_probed:
            return self, self.loss(outputs, targets)
        place = place_of_loss(outputs) if self.criterion is None else 0
        inside = loss_inside(outputs, place)
        returns_loss = self.criterion is None and inside is not None and inside.dim() == 0
        known = replace(self, place=place if returns_loss else None)
        loss = known.loss(outputs, targets)
        return replace(known, is_probed=True), loss

    def accuracy(self, outputs: Any, targets: Any) -> float | None:
        """From 0 to 1; None for floating-point targets, unless the model has its own accuracy."""
        if self.own_accuracy is not None:
            return float(self.own_accuracy(outputs, targets))
        return class_accuracy(outputs, targets, self.classes)

    # --- what shards weigh ---

    def of_shards(self, losses: Tensor, targets: Any) -> Tensor:
        """The loss of the batch from those of its shards, ``(shards,)``, as ``Tensor.chunk`` splits it.

        Without targets, ``(rows, …)`` of all shards, other outputs may stand for them. Raises ConfigError.
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
        if self.loss_weight is not None:
            return self.loss_weight(targets)
        return counted(_first(targets))


def _first(targets: Any) -> Tensor:
    """The first tensor, which has the rows and the tokens of all."""
    found = next(tensors.walk(targets), None)
    if found is None:
        raise ConfigError(
            "replicas return their losses alone, and the data has no targets to weight these by: give the "
            "labels as targets, too, or return an output with the rows beside the loss"
        )
    return found


# --- whether it is that of its halves ---


def no_mean_over_rows(model: nn.Module, objective: Objective, batch: Batch) -> str:
    """That the loss of the batch is not that of its halves together, and what to give; empty where it is.

    A copy of the model computes all rows and each half in eval mode, in float64 and without gradients. Empty
    also where halves say nothing: the batch has no halves, or the loss draws random numbers or is not finite.
    """
    if batch.rows < 2 or batch.has_structure:
        return ""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole, together, limit = _losses(model, objective, batch)
    except Exception:  # of any kind: it is the user's loss, which need not take half of a batch
        return ""
    if not abs(whole - together) > limit:  # or not a number
        return ""
    return (
        f"the loss of a batch of {plural(batch.rows, 'row')} is {whole:.6g}, and that of its halves together "
        f"{together:.6g}: it is not {KINDS[objective.reduction]}. For a sum give --reduction sum, for a mean "
        "over targets --reduction tokens (only -100 counts as masked), for another mean a function "
        "loss_weight(targets) of the loss or the model, which returns what it divides by"
    )


def _losses(model: nn.Module, objective: Objective, batch: Batch) -> tuple[float, float, float]:
    """The loss of all rows, that of the halves together, and the largest difference by rounding."""
    module = tensors.cast_module(copied_module(model), torch.float64).eval()
    if any(isinstance(each, _BatchNorm) and each.running_mean is None for each in module.modules()):
        raise RuntimeError("batch norms without running statistics mix the rows")
    batch = batch.changed(partial(tensors.cast, dtype=torch.float64))
    before, middle = torch.get_rng_state(), batch.rows // 2
    parts = [batch, batch.sliced(slice(0, middle)), batch.sliced(slice(middle, batch.rows))]
    whole, *of_halves = [
        objective.copied(module).probed(module(*part.inputs), part.targets)[1] for part in parts
    ]
    if not torch.equal(before, torch.get_rng_state()):
        raise RuntimeError("it draws random numbers")
    weights = objective.weights(parts[1:])
    losses = [weight * float(loss) for weight, loss in zip(weights, of_halves, strict=True)]
    relative = max(LIMIT, 1000 * torch.finfo(whole.dtype).eps)
    return float(whole), math.fsum(losses), relative * max(abs(float(whole)), *map(abs, losses))


def counted(labels: torch.Tensor) -> Any:
    """How many labels ``(rows, …)`` a mean over them counts; all of floating-point ones."""
    return labels.numel() if labels.is_floating_point() else (labels != PADDING).sum()


def shares(counts: Sequence[float], is_sum: bool = False) -> list[float]:
    """The weights of all parts of a batch in its loss; not numbers where none counts, as the mean is."""
    total = sum(counts) or math.nan
    return [1.0] * len(counts) if is_sum else [each / total for each in counts]
