"""Tries: what a proof does with the copies, as data, and the trial that it makes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpexp.data.batch import Batch
from dpexp.data.rng import seed_globals
from dpexp.distributed.group import ProcessGroup
from dpexp.verification.checks import checked_window
from dpexp.verification.compare import magnitude
from dpexp.verification.gathered_outputs import gathered_outputs
from dpexp.verification.mode import Mode
from dpexp.verification.proof_sides import ProofSides
from dpexp.verification.recorder import Step, computed
from dpexp.verification.take import take_evaluation, take_step
from dpexp.verification.trial import Trial

CORRELATED = 0.75
"""Chunks with the same random numbers leave at most half of the rows of alike rows different."""


@dataclass(frozen=True)
class Try:
    """A step on each of these global batches in a mode; or it ``evaluates`` them, on every rank all rows.

    Without ``updates`` the last one ends before the optimizer.
    """

    mode: Mode
    batches: Sequence[Batch]
    evaluates: bool = False
    updates: bool = True


def run(both: ProofSides, trial: Trial, each: Try) -> Trial:
    """The trial after these steps too, up to the first that differs. Raises SingleDeviceError."""
    sides, group, quiet = replace(both.sides, mode=each.mode), both.sides.group, each.mode.quiet
    rows_are_apart = both.nature.batch_norms | both.nature.drawing <= quiet
    both.switch.set(quiet)  # an evaluation leaves every module in training mode
    for number, batch in enumerate(each.batches, 1):
        if each.evaluates:
            trial = take_evaluation(sides, trial, batch)
        else:
            updates = each.updates or number < len(each.batches)
            part = both.objective.weighted(batch.part(group.rows), group)
            seed_globals(((trial.steps + 1) << 16) + group.dp_rank)
            trial = take_step(sides, trial, batch, part, updates=updates)
            gradients = trial.gradients.items()
            reached = {n for n, grad in gradients if n not in trial.reached and magnitude(grad) > 0}
            trial = replace(trial, reached=trial.reached | reached)
            if trial.failure is None and updates and rows_are_apart:
                trial = checked_window(sides, trial)
        if trial.failure is not None:
            break
    return trial


def draw_alike(group: ProcessGroup) -> str:
    """The hint at generators that are seeded alike."""
    who = "ranks" if group.size > 1 else "replicas"
    return f"the {who} draw the same random numbers: seed the generator of each differently"


def drawn_alike(both: ProofSides, batch: Batch) -> bool:
    """Whether rows of the layout get the same random numbers as others, and do not on a single device.

    In the first mode for training, if there is one. Not known of ranks that share rows, which are seeded
    alike here.
    """
    sides, group, modes = both.sides, both.sides.group, both.modes
    if group.size > group.dp_size:
        return False
    mode = modes.training[0] if modes.training else modes.together or Mode()
    both.switch.set(mode.quiet)
    alike = batch.chosen([0] * batch.rows)
    part = both.objective.weighted(alike.part(group.rows), group)
    seed_globals(group.dp_rank)
    expected = sides.single.step(sides.state(), alike, mode)
    if 2 * _distinct(expected) <= batch.rows:
        return False
    found = computed(sides.layout, part)
    found = replace(found, outputs=gathered_outputs(found, expected, part, both.objective, group))
    return _distinct(found) < CORRELATED * _distinct(expected)


def _distinct(step: Step) -> int:
    """How many rows of the outputs differ from each other, by more than rounding."""
    rows: list[Any] = [each.flatten(1) for each in step.outputs.values() if each.dim() > 1 and each.numel()]
    scaled = [tensor / tensor.abs().max().clamp(min=1e-300) for tensor in rows]
    return max((len(torch.unique((each * 1e9).round(), dim=0)) for each in scaled), default=0)
