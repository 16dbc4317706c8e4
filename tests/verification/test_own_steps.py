"""Own steps: those of the run itself, in its own type, at first and after the last one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.engine_runs import recorded
from torch import nn

from dpexp.config.errors import VerificationError
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import error_row
from dpexp.distributed.launch import error_of
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.record.fold import load_record
from dpexp.strategies.placed import Shards

STEPS: dict[str, Any] = {"steps": 6, "warmup": 5, "phase_steps": 0, "threads": 1}


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"optimizer": "adam", "clip_norm": 0.1, "accumulate": 2}, 1e-5), ({"dtype": "bfloat16"}, 2.0**-5)],
)
def test_a_right_run_equals_a_single_device_in_its_own_type(
    dpexp_home: Path, options: Any, limit: float
) -> None:
    found = recorded(dpexp_home, RunConfig("whole", virtual=3, **STEPS | options)).verification
    for name, steps in (("first_steps", 4), ("last_step", options.get("accumulate", 1))):
        row = found[name]
        assert (row["passed"], row["steps"], row["note"], row["tolerance"]) == (True, steps, "", limit)
        errors = [row[f"{kind}_error"] for kind in ("output", "loss", "gradient", "parameter", "update")]
        assert all(0 <= error <= limit for error in errors)


def test_steps_that_a_short_warm_up_lacks_come_after_the_last(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("single", **STEPS | {"warmup": 1})).verification
    assert [found[name]["steps"] for name in ("first_steps", "last_step")] == [1, 4]


@pytest.mark.parametrize("options", [{"accumulate": 4, "optimizer": "adam"}, {"eval": True}])
def test_a_run_has_the_bits_of_one_that_compares_nothing(dpexp_home: Path, options: Any) -> None:
    config = STEPS | {"virtual": 2, "model": "nets:Drops", "phase_steps": 2} | options
    with_check, without = (
        recorded(dpexp_home, RunConfig("whole", check=check, **config), f"check-{check}")
        for check in (True, False)
    )
    for of in (lambda r: r.digest, lambda r: r.steps["loss"], lambda r: r.metrics, lambda r: r.memory_use):
        assert of(with_check) == of(without)
    assert "first_steps" not in without.verification or without.verification["first_steps"] is None


# --- wrong ones ------------------------------------------------------------------------------------


def begins_late(model: Any, devices: Any) -> nn.Module:
    calls: list[None] = []

    def change(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return gradient / 2 if len(calls) > 10 else gradient

    model.block1.weight.register_hook(change)
    return model  # type: ignore[no-any-return]


def test_a_bug_that_begins_late_is_found_after_the_last_step_which_stays_recorded(dpexp_home: Path) -> None:
    """A launcher makes the same error of the Record of its ranks."""
    options = {"layout": f"{__file__}:begins_late"}
    with pytest.raises(VerificationError) as error:
        recorded(dpexp_home, RunConfig("custom", model="blocks", options=options, **STEPS))
    record = load_record(dpexp_home / "runs" / "run")
    assert (record.verification["passed"], record.verification["cause"]) == (False, error.value.cause)
    assert "after the last measured step, from its state" in record.verification["cause"]
    assert record.verification["first_steps"]["passed"] is True
    assert record.verification["last_step"]["worst"]["tensor"] == "block1.weight"
    assert len(record.steps["loss"]) == 6
    assert record.digest["weights"]
    record.error = error_row(error.value)
    of_ranks = error_of(record, None)
    assert (str(of_ranks), vars(of_ranks)) == (str(error.value), vars(error.value))


class OtherNorm(Shards):
    """Finds the norm of all gradients to be three times as large."""

    def total_norm(self, gradients: Any) -> torch.Tensor:
        return 3 * super().total_norm(gradients)


@pytest.mark.parametrize(("limit", "accumulate"), [(1e-6, 2), (1e6, 1)])
def test_a_norm_that_is_wrong_is_found_whether_the_run_clips_by_it_or_not(
    monkeypatch: pytest.MonkeyPatch, limit: float, accumulate: int
) -> None:
    prepared = prepare(RunConfig("single", clip_norm=limit, accumulate=accumulate, lr=0.1))
    place = prepared.strategy.place
    wrong = lambda _, *given: replace(place(*given), shards=OtherNorm())  # noqa: E731
    monkeypatch.setattr(type(prepared.strategy), "place", wrong)
    assert "(fc." in verify(prepared).cause
