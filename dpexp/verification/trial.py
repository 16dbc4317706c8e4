"""Trial: what steps of a layout beside a single device have shown so far, and the verdict about one more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from dpexp.config.words import listed, plural
from dpexp.data.batch import Batch
from dpexp.distributed.group import ProcessGroup
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import HIDES, Difference, Kinds, Limits, Noise, Parts, Tensors, worst
from dpexp.verification.mode import Mode
from dpexp.verification.recorder import Step
from dpexp.verification.rounding import CERTAIN, largest
from dpexp.verification.state import State

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""
NOT_COMPARABLE = "not comparable"
"""How the note begins that names steps in which rounding would hide an error."""

Window: TypeAlias = tuple[tuple[State, Batch], ...]
"""The batches whose gradients accumulate, since the optimizer's last step, each with the state before it."""


class SingleDeviceError(Exception):
    """The single device cannot compute the step, in this type, say; or no layout computes the same."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NonfiniteError(RuntimeError):
    """The loss of a single device is not finite, so that no layout can be compared with it."""


@dataclass(frozen=True)
class Failure:
    """The first step that differs, and what both sides computed in it; or ``text`` says all.

    ``state`` is that before the batch. An optimizer's step that differs began from the parameters ``before``,
    and a single device has made those ``after``, in the ``type_of_update`` inside, where that is known.
    ``where`` begins the message, for a batch that is none of the run's; ``hint`` is what is known of the
    cause before the difference is located.
    """

    worst: Difference
    batch: Batch = field(default_factory=lambda: Batch((), None, 0, 0))
    found: Step = field(default_factory=Step)
    expected: Step = field(default_factory=Step)
    text: str = ""
    limits: Limits = field(default_factory=lambda: Limits(0.0))
    mode: Mode = field(default_factory=Mode)
    state: State | None = None
    before: Tensors = field(default_factory=dict)
    after: Tensors = field(default_factory=dict)
    type_of_update: torch.dtype | None = None
    in_eval_mode: bool = False
    where: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Verdict:
    """What ``failed``, with the ``limits`` that said so: the same on every rank, None where nothing did.

    ``errors`` has the worst difference of each kind on this rank; ``hidden`` is one that rounding would hide.
    """

    limits: Limits
    failed: Difference | None = None
    errors: Mapping[str, Difference] = field(default_factory=dict)
    hidden: Difference | None = None


@dataclass(frozen=True)
class Trial:
    """Steps on batches of so many ``rows``, up to the first ``failure``; a step more makes another trial.

    ``errors`` has the worst difference of each kind on this rank, ``hidden`` one of each step in which
    rounding would hide an error. To tensors ``by_shards`` the forward of each shard writes other numbers.
    ``reached`` are parameters that had a gradient, ``follows`` settings that the optimizer's steps change,
    and ``type_of_update`` is the shortest type in which it computes, once its rounding was measured.
    ``gaps`` are not compared; training mode was in ``mode_in_training``, if apart from other steps.

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
    gaps: tuple[str, ...] = ()
    mode_in_training: Mode | None = None
    state: State | None = None
    window: Window = ()
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
        errors = worst_errors(self.errors, verdict.errors)
        return replace(self, errors=errors, hidden={**hidden, **self.hidden})

    def noted(self, *notes: str) -> Trial:
        """With notes, each once."""
        return replace(self, notes=tuple(dict.fromkeys([*self.notes, *notes])))

    def restarted(self) -> Trial:
        """What it has shown, but none of the steps; without the batches since the optimizer's last step."""
        shown = replace(self, rows=(), failure=None, hidden={}, by_shards=frozenset())
        return replace(shown, state=None, window=(), gradients={})


# --- a verdict ---


def judge(
    step: int, comparisons: Iterable[tuple[Kinds, Noise]], limits: Limits, group: ProcessGroup
) -> Verdict:
    """The worst of the first kind that is over its limit on any rank after one comparison after the other.

    Each has what differs, and what rounding explains of it. The first one that explains everything is the
    last that is made, and so is one that leaves no doubt. Every rank must call this with the same kinds.
    """
    noise, verdict = list[Noise](), Verdict(limits)
    for kinds, explained in comparisons:
        noise.append(explained)
        measured = replace(limits, noise=largest(noise, 1))
        verdict = _judged(step, kinds, measured, group, verdict.hidden)
        if verdict.failed is None or _is_certain(verdict.failed, measured, group):
            break
    return verdict


def _is_certain(failed: Difference, limits: Limits, group: ProcessGroup) -> bool:
    """Whether more measurements of rounding cannot explain it."""
    if not math.isfinite(failed.apart):
        return True
    of_kind = (each for key, each in limits.noise.items() if key[0] == failed.kind)
    own = max((max(each, default=0.0) for each in of_kind), default=0.0)
    return bool(0 < CERTAIN * min(group.all_gather(own)) < failed.apart)


def _judged(
    step: int, kinds: Kinds, limits: Limits, group: ProcessGroup, hidden: Difference | None
) -> Verdict:
    own = [_of_kind(step, kind, parts, limits) for kind, parts in kinds.items()]
    by_kind = [*zip(*group.all_gather(own), strict=True)]
    found = next((each for of_kind in by_kind for _, each in of_kind if each is not None), None)
    of_ranks = [[each for each, _ in of_kind if each is not None] for of_kind in by_kind]
    failed = next((each for each in map(worst, filter(None, of_ranks)) if each.ratio > 1), None)
    errors = {each.kind: each for each, _ in own if each is not None}
    return Verdict(limits, failed, errors, hidden or found)


def _of_kind(
    step: int, kind: str, parts: Mapping[str, Parts], limits: Limits
) -> tuple[Difference | None, Difference | None]:
    """The worst difference of a kind that can be compared, and one that rounding would hide."""
    judged = limits.judge(kind, step, parts).values()
    hidden = next((each for each in judged if not each.is_comparable), None)
    comparable = [each for each in judged if each.is_comparable]
    return worst(comparable) if comparable else None, hidden


def worst_errors(*errors: Mapping[str, Difference]) -> dict[str, Difference]:
    """The worst difference of each kind of all of these; of two alike the later one."""
    found = dict[str, Difference]()
    for of_step in errors:
        for kind, each in of_step.items():
            found[kind] = worst([each, found.get(kind, each)])
    return found


# --- what is noted ---


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
