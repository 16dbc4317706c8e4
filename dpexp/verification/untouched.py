"""Untouched: whether a single device still computes what it computed before a user's layout was called.

A layout that replaces ``nn.Linear.forward`` or ``functional.linear`` for all changes the single device, too,
and both agree. So a step of the single device is taken before the layout is made, and again afterwards: it
has the same bits, or the layout has changed what every model computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.alike import listed
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals, seed_globals
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import in_dtype, on_host
from dpexp.verification.limits.compare import relative_error, whole_error
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Recorder
from dpexp.verification.touched_rows import with_touched_rows


class Untouched:
    """Made before the layout is; ``changed`` then says what it has changed.

    It takes a step of the single device on the batch, in float64 and in ``dtype``; the model is not changed.
    """

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
        self._objective, self._optimizer = objective, optimizer
        self._dtypes = dict.fromkeys((torch.float64, dtype))
        self._bits = self._step()
        self._functions = dict(_functions())  # PyTorch's first step replaces some itself

    def _replaced(self) -> str:
        """The functions of PyTorch that are others now, in words; empty if there are none."""
        now = dict(_functions())
        return listed(name for name, value in self._functions.items() if now.get(name) is not value)

    def changed(self) -> str:
        """What a single device computes otherwise than before; empty if all bits are the same."""
        now = self._step()
        names = [name for name, bits in self._bits.items() if now.get(name) != bits]
        if not names:
            return ""
        functions = self._replaced()
        cause = f": it has replaced {functions}" if functions else ""
        return f"{names[0]} of a single device had other bits before the layout was made{cause}"

    def _step(self) -> dict[str, str]:
        """Digests of what a step computes, in each type, by name in the order in which it is computed."""
        found = {}
        with kept_globals():
            for dtype in self._dtypes:
                seed_globals(1)
                found[f"random numbers ({dtype})"] = tensors.digest([torch.rand(4)])
                found[f"a comparison ({dtype})"] = _comparison(dtype)
                placed = on_host(copied(self._model, dtype))
                trainer = Trainer(placed, self._objective.on_one_device, self._optimizer)
                try:
                    found |= {
                        f"{name} ({dtype})": bits
                        for name, bits in _bits(trainer, in_dtype(self._batch, dtype))
                    }
                except (RuntimeError, NotImplementedError) as error:  # an operator without this type
                    found[f"an error ({dtype})"] = str(error)
        return found


def _bits(trainer: Trainer, batch: Batch) -> Iterator[tuple[str, str]]:
    recorder = Recorder(trainer, True, lambda: None, with_loss=True)
    trainer.step(batch, recorder)
    step = recorder.step
    yield "outputs", tensors.digest(step.outputs)
    yield "the loss", repr(step.loss)
    for name, gradient in step.gradients.items():
        yield f"gradient of {name}", tensors.digest([gradient.to_dense()])
    for name, parameter in trainer.full_parameters().items():
        yield f"updated {name}", tensors.digest([parameter])


def _comparison(dtype: torch.dtype) -> str:
    """The errors between two tensors, by which layouts are judged."""
    expected = torch.arange(1.0, 9.0).to(dtype)
    found = torch.where(expected == 3, torch.full_like(expected, 3.5), expected)
    return repr((relative_error({"": found}, {"": expected}), whole_error(found, expected)))


def _functions() -> Iterator[tuple[str, Any]]:
    """The functions of PyTorch, and those of its classes, by their names."""
    spaces = (torch, nn.functional, torch.linalg, torch.autograd, torch.distributed, torch.random)
    for space in (*spaces, nn.init, nn.utils, torch.cuda):
        for name, value in vars(space).items():
            if callable(value) and not inspect.isclass(value):
                yield f"{space.__name__}.{name}", value
    classes = [each for space in (nn, torch.optim) for each in vars(space).values() if inspect.isclass(each)]
    owners: list[type] = [*classes, nn.parallel.DistributedDataParallel, torch.Tensor]
    for owner in dict.fromkeys(owners):
        for name, value in vars(owner).items():
            if callable(value):
                yield f"{owner.__module__}.{owner.__qualname__}.{name}", value
