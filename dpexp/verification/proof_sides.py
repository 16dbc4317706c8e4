"""Proof sides: copies of a model, one of them laid out, in the first type that one device computes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from dpexp.verification.mode import WHOLE_MODEL, Mode, Modes, Nature, Switch
from dpexp.verification.model_copy import copied, in_dtype
from dpexp.verification.recorder import Step
from dpexp.verification.result import TOLERANCE
from dpexp.verification.rounding import NARROWER, NEGLIGIBLE, mixed_precision
from dpexp.verification.sides import FullTensors, Sides
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


@dataclass(frozen=True)
class Copies:
    """What is copied, laid out and trained: ``optimizer`` makes the optimizer of some parameters."""

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    objective: Objective
    optimizer: OptimizerFactory | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    dtype: torch.dtype = torch.float64

    def both_sides(self) -> ProofSides:
        """The layout is of a copy with the modes of the model as written; every rank must call this.

        Where the layout casts the model, the single device computes in that type, too. Raises what the model
        raises in every type.
        """
        probed = self._probed(self.dtype)
        model = copied(self.model, probed.dtype)
        mark_drawing(model, probed.nature.drawing - {WHOLE_MODEL})
        objective, placed = probed.objective.copied(model), self.lay_out(model)
        types = {each.dtype for each in placed.module.parameters() if each.is_floating_point()}
        is_cast = len(types) == 1 and probed.dtype not in types
        if is_cast:
            probed = self._probed(next(iter(types)))
            narrowed = f"compared in {probed.dtype}: the layout has cast the model to it"
            probed = replace(probed, narrowed=probed.narrowed or narrowed)
        nature, dtype, chunks = probed.nature, probed.dtype, Chunks.of(placed, self.group)
        layout = Trainer(placed, objective.loss, self.optimizer, group=self.group)
        negligible = max(NEGLIGIBLE[each] for each in (dtype, *mixed_precision(placed.module)))
        tolerance = torch.finfo(dtype).eps if probed.narrowed else TOLERANCE[dtype]
        limits, full = Limits.of(dtype, tolerance, negligible), FullTensors(layout)
        return ProofSides(
            Sides(layout, objective, probed.single, full, limits, chunks, Mode(), is_cast, True, True),
            self.objective,
            [in_dtype(each, dtype) for each in self.batches],
            nature,
            Modes.of(nature, placed, chunks, self.group),
            Switch(placed.module, nature.batch_norms | nature.drawing),
            dtype,
            probed.narrowed,
        )

    def _probed(self, dtype: torch.dtype) -> Probed:
        """In the first type in which the model computes."""
        first_error, narrowed = None, ""
        while True:
            try:
                nature, known = self._probe(dtype)
                break
            except (RuntimeError, NotImplementedError) as error:
                narrower, first_error = NARROWER.get(dtype), first_error or error
                if type(error) not in (RuntimeError, NotImplementedError) or narrower is None:
                    raise first_error from None
                narrowed = f"compared in {narrower}, since a single device does not compute it in {dtype}: "
                narrowed += describe(error)
                dtype = narrower
        single = SingleDevice(copied(self.model, dtype), self.optimizer)
        mark_drawing(single.trainer.placed.module, nature.drawing - {WHOLE_MODEL})
        return Probed(single, known, nature, dtype, narrowed)

    def _probe(self, dtype: torch.dtype) -> tuple[Nature, Objective]:
        """What of a model depends on other rows or random numbers, and what its forward returns."""
        probe = SingleDevice(copied(self.model, dtype), self.optimizer)
        module = probe.trainer.placed.module
        state = State.of(probe.trainer, self.objective.copied(module))

        def step(quiet: frozenset[str]) -> Step:
            nonlocal state
            step = probe.step(state, self.batches[0], Mode(quiet))
            state = replace(state, objective=step.objective)  # which knows what the forward returns
            return step

        return Nature.of(module, step), state.objective
