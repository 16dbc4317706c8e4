"""Sides: a layout and the single device beside it, and how the two are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.copies import copied
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.random_layers import mark_drawing
from dpexp.strategies.placed import Placed
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits, Tensors
from dpexp.verification.mode import WHOLE_MODEL, Mode, Modes, Nature, Switch
from dpexp.verification.recorder import Step
from dpexp.verification.result import TOLERANCE
from dpexp.verification.rounding import NARROWER, NEGLIGIBLE, mixed_precision
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State

LayOut: TypeAlias = Callable[[nn.Module], Placed]


@dataclass(frozen=True)
class Sides:
    """``layout`` is a trainer, of copies or the run's own; ``objective`` is that of its model.

    ``chunks`` says how the layout splits rows, ``mode`` how the single device computes them.
    ``is_short``: the run computes in a shorter type than float64, beside which it is judged, too.
    ``are_copies``: each step records the calls of modules, and the limit of clipped gradients follows their
    norm. A run's own step that differs is taken again for the calls.
    """

    layout: Trainer
    objective: Objective
    single: SingleDevice
    limits: Limits
    chunks: Chunks = field(default_factory=Chunks)
    mode: Mode = field(default_factory=Mode)
    is_short: bool = False
    are_copies: bool = False

    @property
    def group(self) -> ProcessGroup:
        """The ranks of the layout."""
        return self.layout.group

    @property
    def is_split(self) -> bool:
        """Whether a forward may get a part of the rows."""
        return self.chunks.splits or self.group.size > 1

    def state(self, follows: frozenset[str] = frozenset()) -> State:
        """The layout's state, with these settings of the optimizer's groups and those known to change.

        Every rank must call this.
        """
        return State.of(self.layout, self.objective).following(self.single.follows | follows)

    def part(self, batch: Batch) -> Batch:
        """This rank's part of a global batch, with its weight in the loss; every rank must call this."""
        return self.objective.weighted(batch.part(self.group.rows), self.group)

    def completed(self, own: Tensors) -> dict[str, torch.Tensor]:
        """Tensors by name with those of stages that only other ranks have; every rank must call this."""
        names = self.layout.parameters().keys() | self.layout.buffers().keys()
        everywhere = self.group.complete(dict(own))
        return {name: each for name, each in everywhere.items() if name in own or name not in names}


# --- both sides of a proof ---


@dataclass(frozen=True)
class ProofSides:
    """Both ``sides`` of a proof in this ``dtype``, and the ``modes`` of the comparison.

    ``switch`` puts modules of the layout into a mode; ``narrowed`` says why the type is not the usual one.
    """

    sides: Sides
    nature: Nature
    modes: Modes
    switch: Switch
    dtype: torch.dtype
    narrowed: str


@dataclass(frozen=True)
class Copies:
    """What is copied, laid out and trained; without an ``optimizer`` only forwards are compared.

    ``made`` is a batch of edge rows (``edge_rows``); what it shows is not among the steps of the result.
    """

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    objective: Objective
    optimizer: OptimizerFactory | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    dtype: torch.dtype = torch.float64
    made: Batch | None = None

    def both_sides(self) -> ProofSides:
        """The layout is of a copy with the modes of the model as written; every rank must call this.

        The type is the first in which one device computes, or that to which the layout casts the model.
        Raises what the model raises in every type.
        """
        nature, known, dtype, narrowed = self._probed(self.dtype)
        model = self._copied(dtype, nature)
        objective, placed = known.copied(model), self.lay_out(model)
        types = {each.dtype for each in placed.module.parameters() if each.is_floating_point()}
        is_cast = len(types) == 1 and dtype not in types
        if is_cast:
            nature, _, dtype, why = self._probed(next(iter(types)))
            narrowed = why or f"compared in {dtype}: the layout has cast the model to it"
        layout = Trainer(placed, objective.loss, self.optimizer, group=self.group)
        single = SingleDevice(self._copied(dtype, nature), self.optimizer)
        chunks = Chunks.of(placed, self.group)
        negligible = max(NEGLIGIBLE[each] for each in (dtype, *mixed_precision(placed.module)))
        limits = Limits.of(dtype, torch.finfo(dtype).eps if narrowed else TOLERANCE[dtype], negligible)
        return ProofSides(
            Sides(layout, objective, single, limits, chunks, Mode(), is_cast, are_copies=True),
            nature,
            Modes.of(nature, placed, chunks, self.group),
            Switch(placed.module, nature.batch_norms | nature.drawing),
            dtype,
            narrowed,
        )

    def _copied(self, dtype: torch.dtype, nature: Nature) -> nn.Module:
        model = copied(self.model, dtype)
        mark_drawing(model, nature.drawing - {WHOLE_MODEL})
        return model

    def _probed(self, dtype: torch.dtype) -> tuple[Nature, Objective, torch.dtype, str]:
        """What one device finds out about the model, in the first type that it computes in, and why so."""
        first_error, narrowed = None, ""
        while True:
            try:
                return *self._probe(dtype), dtype, narrowed
            except (RuntimeError, NotImplementedError) as error:
                narrower, first_error = NARROWER.get(dtype), first_error or error
                if type(error) not in (RuntimeError, NotImplementedError) or narrower is None:
                    raise first_error from None
                narrowed = f"compared in {narrower}, since a single device does not compute it in {dtype}: "
                narrowed += describe(error)
                dtype = narrower

    def _probe(self, dtype: torch.dtype) -> tuple[Nature, Objective]:
        """What of a model depends on other rows or random numbers, and what its forward returns."""
        probe = SingleDevice(copied(self.model, dtype), self.optimizer)
        module = probe.trainer.placed.module
        state = State.of(probe.trainer, self.objective.copied(module))
        known = state.objective

        def step(quiet: frozenset[str]) -> Step:
            nonlocal known
            step = probe.step(replace(state, objective=known), self.batches[0], Mode(quiet))
            known = step.objective
            return step

        return Nature.of(module, step), known
