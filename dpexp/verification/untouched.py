"""Untouched: whether a single device still computes what it computed before a user's layout was called.

A layout that replaces ``nn.Linear.forward`` for all changes the single device, too, and both agree. So a step
is taken before the layout is made, and again at the end: from the same state it has the same bits.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals, seed_globals
from dpexp.training.optimizers import OptimizerFactory
from dpexp.verification.model_copy import copied
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State
from dpexp.verification.touched_rows import with_touched_rows


class Untouched:
    """Made before the layout is; in float64 and in ``dtype``. The model is not changed."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        reduced, _ = with_touched_rows(model, [batch])
        self._model, self._batch = copied(reduced, torch.float64), batch
        self._objective, self._optimizer = objective.of(self._model), optimizer
        self._dtypes = dict.fromkeys((torch.float64, dtype))
        self._bits = self._step()

    def changed(self) -> str:
        """What a single device computes otherwise than before; empty if all bits are the same."""
        now = self._step()
        name = next((name for name, bits in self._bits.items() if now.get(name) != bits), "")
        return name and f"{name} of a single device had other bits before the layout was made"

    def _step(self) -> dict[str, str]:
        """Digests of what a step computes in each type, as far as there are operators for it."""
        bits = {}
        for dtype in self._dtypes:
            with kept_globals(), suppress(RuntimeError, NotImplementedError):
                seed_globals(1)
                bits[f"random numbers ({dtype})"] = tensors.digest([torch.rand(4)])
                single = SingleDevice(copied(self._model, dtype), self._objective, self._optimizer)
                state = State.of(single.trainer, single.objective)
                step, _ = single.step(state, self._batch)
                after = single.update(state, step.gradients) if self._optimizer is not None else {}
                bits[f"outputs ({dtype})"] = tensors.digest(step.outputs)
                bits[f"the loss ({dtype})"] = repr(step.loss)
                for what, values in (
                    ("gradient of", step.gradients),
                    ("updated", after.get("parameters", {})),
                ):
                    for name, value in values.items():
                        bits[f"{what} {name} ({dtype})"] = tensors.digest([value.to_dense()])
        return bits
