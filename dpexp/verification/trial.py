"""Trial: what steps of a layout beside a single device have shown so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from dpexp.config.words import listed, plural
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import HIDES, Difference, Tensors
from dpexp.verification.failure import Failure
from dpexp.verification.judge import Verdict, worst_errors
from dpexp.verification.state import State
from dpexp.verification.window import Window

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""
NOT_COMPARABLE = "not comparable"
"""How the note begins that names steps in which rounding would hide an error."""


@dataclass(frozen=True)
class Trial:
    """Steps on batches of so many ``rows``, up to the first ``failure``; a step more makes another trial.

    ``errors`` has the worst difference of each kind on this rank, ``hidden`` one of each step in which
    rounding would hide an error. To tensors ``by_shards`` the forward of each shard writes other numbers.
    ``reached`` are parameters that had a gradient, ``follows`` settings that the optimizer's steps change,
    and ``type_of_update`` is the shortest type in which it computes, once its rounding was measured.

    The latest step has left this ``state`` of the layout, which nothing but a step may change; None where a
    forward may have counted. ``gradients`` are a single device's in the ``window`` so far.
    """

    rows: tuple[int, ...] = ()
    failure: Failure | None = None
    errors: Mapping[str, Difference] = field(default_factory=dict)
    hidden: Mapping[int, Difference] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_shards: frozenset[str] = frozenset()
    reached: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    type_of_update: torch.dtype | None = None
    state: State | None = None
    window: Window = field(default_factory=Window)
    gradients: Tensors = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many were taken."""
        return len(self.rows)

    @property
    def compared(self) -> int:
        """The steps in which rounding would hide no error."""
        return self.steps - sum(step <= self.steps for step in self.hidden)

    def judged(self, verdict: Verdict) -> Trial:
        """With the errors of one more verdict about the latest step."""
        hidden = {} if verdict.hidden is None else {self.steps: verdict.hidden}
        return replace(
            self, errors=worst_errors(self.errors, verdict.errors), hidden={**hidden, **self.hidden}
        )

    def noted(self, *notes: str) -> Trial:
        """With notes, each once."""
        return replace(self, notes=tuple(dict.fromkeys([*self.notes, *notes])))

    def restarted(self) -> Trial:
        """With the errors, but none of the steps; without the batches since the optimizer's last step."""
        return Trial(
            errors=self.errors,
            notes=self.notes,
            reached=self.reached,
            follows=self.follows,
            type_of_update=self.type_of_update,
        )


def uncompared(trial: Trial, layout: Trainer, usual: torch.dtype) -> list[str]:
    """Buffers that shards write, and steps in which rounding would hide an error, in words."""
    names = listed(sorted(frozenset[str]().union(*layout.group.all_gather(trial.by_shards))))
    written = [f"each shard writes to {names} from its own rows: not compared"] if names else []
    if not trial.hidden:
        return written
    steps = [f"step {step} ({plural(trial.rows[step - 1], 'row')})" for step in sorted(trial.hidden)]
    first = trial.hidden[min(trial.hidden)]
    what = f"{first.kind} ({first.tensor})" if first.tensor else first.kind
    why = "shards with more rows are better conditioned"
    if first.kind in OF_OPTIMIZER and (short := short_optimizer(trial.type_of_update, usual, layout)):
        why = f"{short}: take another one to compare the layout"
    return [
        *written,
        f"{NOT_COMPARABLE}: {listed(steps)}, where rounding alone may change {what} by over "
        f"{HIDES:.0%}, which would hide an error of this size: {why}",
    ]


def short_optimizer(computed_in: torch.dtype | None, usual: torch.dtype, layout: Trainer) -> str:
    """That the optimizer computes in a shorter type than the parameters have, in words; else empty."""
    if computed_in is None or torch.finfo(computed_in).eps <= torch.finfo(usual).eps:
        return ""
    name = str(computed_in).removeprefix("torch.")
    return f"the optimizer ({layout.optimizers}) computes in {name} inside"
