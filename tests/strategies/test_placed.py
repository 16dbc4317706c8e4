"""The one step of a placed model: every pass of a run takes it, and a layout may override it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.engine_runs import recorded

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.measurement.profile import STEPS, WARM_UP
from dpexp.strategies.placed import UNOBSERVED, Loss, Placed, StepObserver
from dpexp.strategies.single import Single

Update = Callable[[], object] | None
NOTHING: AbstractContextManager[object] = nullcontext()


class Watched(Placed):
    """Counts its steps, and notes every forward in training mode outside of them."""

    def step(self, batch: Batch, loss: Loss, update: Update, *more: Any, **named: Any) -> torch.Tensor:
        COUNTS["steps"] += 1
        INSIDE.append(True)
        try:
            return super().step(batch, loss, update, *more, **named)
        finally:
            INSIDE.pop()


class Interleaved(Placed):
    """Two micro-batches, each with its forward and backward before the next begins."""

    def step(
        self,
        batch: Batch,
        loss: Loss,
        update: Update,
        autocast: AbstractContextManager[object] = NOTHING,
        observer: StepObserver = UNOBSERVED,
    ) -> torch.Tensor:
        outputs, total = [], torch.zeros(())
        with torch.set_grad_enabled(update is not None):
            for rows in torch.arange(batch.rows).chunk(2):
                outputs.append(self.module(*(tensor[rows] for tensor in batch.inputs)))
                part = loss(outputs[-1], batch.targets[rows]) * (WEIGHT(len(rows)) / batch.rows)
                total = total + part.detach()
                if update is not None:
                    self.gradient_sync.backward(part, batch)
            observer.forward_ended(torch.cat(outputs))
            observer.loss_ended(total)
            if update is not None:
                observer.backward_ended()
                update()
        return total


COUNTS = {"steps": 0, "outside": 0}
INSIDE: list[bool] = []
WEIGHT: Callable[[int], float] = float


@contextmanager
def placed_as(kind: type[Placed], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """``single`` places models so; counts steps of all of these, and forwards in training outside of them."""
    place = Single.place
    COUNTS.update(steps=0, outside=0)

    def watch(module: Any, inputs: Any) -> None:
        COUNTS["outside"] += module.training and not INSIDE

    def other(*args: Any) -> Placed:
        found = place(*args)
        found.module.register_forward_pre_hook(watch)
        return kind(**{each.name: getattr(found, each.name) for each in fields(Placed)})

    monkeypatch.setattr(Single, "place", other)
    yield COUNTS


CONFIG = {"devices": "cpu", "warmup": 2, "steps": 5, "phase_steps": 3}


def test_every_pass_of_a_run_takes_the_step_of_the_layout(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with placed_as(Watched, monkeypatch) as counts:
        record = recorded(dpexp_home, RunConfig("single", profile=True, **CONFIG))
    with_edge_rows, observed, profiled = 1, 4, 1 + WARM_UP + STEPS
    verified = record.verification["steps"] + with_edge_rows
    after_the_last = record.verification["last_step"]["steps"]
    assert counts == {"steps": verified + observed + 2 + 5 + after_the_last + 3 + profiled, "outside": 0}
    assert (len(record.steps["loss"]), len(record.phases["forward"])) == (5, 3)


def test_a_layout_that_interleaves_forward_and_backward_is_verified_timed_and_trained(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = recorded(dpexp_home, RunConfig("single", **CONFIG), "expected")
    with placed_as(Interleaved, monkeypatch):
        found = recorded(dpexp_home, RunConfig("single", **CONFIG), "interleaved")
    assert found.verification["passed"] is True
    assert found.steps["loss"] == pytest.approx(expected.steps["loss"], rel=1e-5)
    assert found.steps["samples"] == expected.steps["samples"]


def test_a_wrong_weight_of_a_micro_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WEIGHT", lambda rows: 15.0)
    with placed_as(Interleaved, monkeypatch):
        result = verify(prepare(RunConfig("single", **CONFIG | {"batch_size": 31})))
    assert result.passed is False
    assert "gradient" in result.cause or "loss" in result.cause


class Silent(Placed):
    """Computes nothing, and calls nothing of its observer."""

    def step(self, *batch_loss_and_update: Any, **named: Any) -> torch.Tensor:
        return torch.zeros(())


def test_a_step_that_shows_nothing_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    with placed_as(Silent, monkeypatch), pytest.raises(RuntimeError, match="has not called backward_ended"):
        verify(prepare(RunConfig("single", **CONFIG)))
