"""Proof sides: copies of a model, one of them laid out, in the first type that one device computes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.random_layers import mark_drawing
from dpexp.strategies.placed import Placed
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits
from dpexp.verification.full_tensors import FullTensors
from dpexp.verification.mode import WHOLE_MODEL, Mode, Modes, Nature, Switch
from dpexp.verification.model_copy import copied, in_dtype
from dpexp.verification.recorder import Step
from dpexp.verification.result import TOLERANCE
from dpexp.verification.rounding import NARROWER, NEGLIGIBLE, mixed_precision
from dpexp.verification.sides import Sides
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State

LayOut: TypeAlias = Callable[[nn.Module], Placed]


@dataclass(frozen=True)
class Probed:
    """A ``single`` device that has taken no step, and what another one has found out about the model.

    It computes in ``dtype``; ``narrowed`` says why not in the one that was asked for.
    """

    single: SingleDevice
    objective: Objective
    nature: Nature
    dtype: torch.dtype
    narrowed: str = ""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        batch: Batch,
        dtype: torch.dtype,
    ) -> Probed:
        """In the first type in which it computes. Raises what the model raises in every type."""
        first_error, narrowed = None, ""
        while True:
            try:
                nature, known = _probe(model, objective, optimizer, batch, dtype)
                break
            except (RuntimeError, NotImplementedError) as error:
                narrower, first_error = NARROWER.get(dtype), first_error or error
                if type(error) not in (RuntimeError, NotImplementedError) or narrower is None:
                    raise first_error from None
                narrowed = f"compared in {narrower}, since a single device does not compute it in {dtype}: "
                narrowed += describe(error)
                dtype = narrower
        single = SingleDevice(copied(model, dtype), optimizer)
        mark_drawing(single.trainer.placed.module, nature.drawing - {WHOLE_MODEL})
        return cls(single, known, nature, dtype, narrowed)


def _probe(
    model: nn.Module,
    objective: Objective,
    optimizer: OptimizerFactory | None,
    batch: Batch,
    dtype: torch.dtype,
) -> tuple[Nature, Objective]:
    """What of a model depends on other rows or random numbers, and what its forward returns."""
    probe = SingleDevice(copied(model, dtype), optimizer)
    module = probe.trainer.placed.module
    state = State.of(probe.trainer, objective.copied(module))

    def step(quiet: frozenset[str]) -> Step:
        nonlocal state
        step = probe.step(state, batch, Mode(quiet))
        state = replace(state, objective=step.objective)  # which knows what the forward returns
        return step

    return Nature.of(module, step), state.objective


@dataclass(frozen=True)
class ProofSides:
    """Both ``sides`` of a proof in this ``dtype``, as are ``batches``, and the ``modes`` of the comparison.

    ``switch`` puts modules of the layout into a mode; ``narrowed`` says why the type is not the usual one.
    ``objective`` is that of the model as written.
    """

    sides: Sides
    objective: Objective
    batches: Sequence[Batch]
    nature: Nature
    modes: Modes
    switch: Switch
    dtype: torch.dtype
    narrowed: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        lay_out: LayOut,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        batches: Sequence[Batch],
        group: ProcessGroup,
        dtype: torch.dtype,
    ) -> ProofSides:
        """The layout is of a copy with the modes of the model as written; every rank must call this.

        Where the layout casts the model, the single device computes in that type, too.
        """
        probed = Probed.of(model, objective, optimizer, batches[0], dtype)
        nature, dtype, narrowed = probed.nature, probed.dtype, probed.narrowed
        copy_of_it = copied(model, dtype)
        mark_drawing(copy_of_it, nature.drawing - {WHOLE_MODEL})
        of_copy = probed.objective.copied(copy_of_it)
        placed = lay_out(copy_of_it)
        types = {each.dtype for each in placed.module.parameters() if each.is_floating_point()}
        is_cast = len(types) == 1 and dtype not in types
        if is_cast:
            probed = Probed.of(model, objective, optimizer, batches[0], next(iter(types)))
            nature, dtype = probed.nature, probed.dtype
            narrowed = probed.narrowed or f"compared in {dtype}: the layout has cast the model to it"
        layout = Trainer(placed, of_copy.loss, optimizer, group=group)
        negligible = max(NEGLIGIBLE[each] for each in (dtype, *mixed_precision(placed.module)))
        tolerance = torch.finfo(dtype).eps if narrowed else TOLERANCE[dtype]
        chunks = Chunks.of(placed, group)
        sides = Sides(
            layout,
            of_copy,
            probed.single,
            FullTensors(layout),
            Limits.of(dtype, tolerance, negligible),
            chunks,
            is_short=is_cast,
            records=True,
            clips=True,
        )
        switch = Switch(placed.module, nature.batch_norms | nature.drawing)
        modes, own = (
            Modes.of(nature, model, placed, chunks, group),
            [in_dtype(each, dtype) for each in batches],
        )
        return cls(sides, objective, own, nature, modes, switch, dtype, narrowed)
