"""Evaluation: accuracy, loss and the user's metrics over all rows, in eval mode and without gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import ConfigError, as_config_error
from dpexp.data.batch import Batch
from dpexp.data.dataset import Dataset
from dpexp.data.objective import Objective
from dpexp.training.trainer import Trainer

Metrics = Callable[[Any, Any], Mapping[str, Any]]
"""From outputs and targets of all rows to ``{name: number}``."""
_NAME = re.compile(r"[\w\- ]{1,100}")
_TAKEN = ("loss", "accuracy")


@dataclass(frozen=True)
class NamedMetrics:
    """Metrics from functions by name, each ``(outputs, targets) -> number``."""

    functions: Mapping[str, Callable[[Any, Any], Any]]

    def __call__(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {name: function(outputs, targets) for name, function in self.functions.items()}


def metrics_of(model: nn.Module) -> Metrics | None:
    """The model's method ``metrics(outputs, targets)``; None where it has none."""
    found = getattr(model, "metrics", None)
    return found if callable(found) and not isinstance(found, nn.Module) else None


@dataclass(frozen=True)
class Evaluation:
    """What a run evaluates at the end of an epoch or of its steps, outside of the measured ones.

    ``held_out`` are the rows of the option ``validation`` (then ``is_asked``), or those that the data holds
    out. Without any, ``metrics`` are those of the epoch's rows.
    """

    held_out: Dataset | None = None
    metrics: Metrics | None = None
    is_asked: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to evaluate."""
        return self.held_out is None and self.metrics is None

    def try_metrics(self, outputs: Any, targets: Any) -> None:
        """Compute the metrics of one batch, before a run opens. Raises ConfigError.

        They may be undefined there, as the area under a curve is where all rows are of one class.
        """
        if self.metrics is None:
            return
        outputs = tensors.map_tensors(torch.Tensor.detach, outputs)
        with as_config_error("metrics of the first batch"), torch.no_grad():
            try:
                found = self.metrics(outputs, targets)
            except (ValueError, ArithmeticError):
                return
        _numbers(found)

    def figures(self, trainer: Trainer, objective: Objective, batches: Iterable[Batch]) -> dict[str, float]:
        """``accuracy``, ``validation_loss`` and ``validation_NAME``; of the epoch's rows ``train_NAME``.

        The loss of each batch counts as the reduction says, and accuracy by rows. The metrics get the outputs
        and targets of all batches in one call, on the host: so every figure is exact, as the mean of an F1
        over batches, replicas or ranks is not. Every rank must call this, with all rows of the same batches.
        Raises ConfigError for metrics that fail.
        """
        only_accuracy = not (self.metrics or self.is_asked)
        losses, correct, parts, outputs = list[float](), list[float](), list[Batch](), []
        for batch in batches:
            found = trainer.evaluate(batch)
            targets = devices.move(batch.targets, trainer.placed.output_device)
            share = objective.accuracy(found, targets)
            if share is not None:
                correct.append(share * batch.rows)
            elif only_accuracy:
                return {}
            parts.append(replace(batch, inputs=()))
            if not only_accuracy:
                with torch.no_grad():
                    losses.append(float(objective.loss(found, targets)))
            if self.metrics is not None:
                outputs.append(devices.move(found, devices.HOST))
        values = {"accuracy": sum(correct) / sum(part.rows for part in parts)} if correct else {}
        if only_accuracy:
            return values
        numbers = self._of_all_rows(outputs, [part.targets for part in parts])
        if self.held_out is None:
            return {f"train_{name}": number for name, number in numbers.items()}
        weighted = zip(losses, objective.weights(parts), strict=True)
        loss = sum(loss * weight for loss, weight in weighted if weight)
        return values | {f"validation_{name}": number for name, number in ({"loss": loss} | numbers).items()}

    def _of_all_rows(self, outputs: list[Any], targets: list[Any]) -> dict[str, float]:
        """The metrics of the rows of all batches."""
        if self.metrics is None:
            return {}
        with as_config_error("metrics: joining the outputs and targets of all batches"):
            all_rows = tensors.concatenated([*zip(outputs, targets, strict=True)])
        with as_config_error("metrics"):
            return _numbers(self.metrics(*all_rows))


def _numbers(found: Any) -> dict[str, float]:
    """What metrics return, as numbers. Raises ConfigError for another form."""
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise ConfigError(f"metrics(outputs, targets) returns a {kind}, not a dict {{name: number}}")
    for name in found:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise ConfigError(
                f"metrics: the name {name!r:.60} must have letters, digits, _, - and spaces only, and not "
                f"be one that dpexp gives: {', '.join(_TAKEN)}"
            )
    with as_config_error("metrics: making numbers of what they return"):
        return {name: float(value) for name, value in found.items()}
