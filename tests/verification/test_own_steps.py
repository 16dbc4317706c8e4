"""Own steps: those of the run itself, in its own type, at first and after the last one."""

from collections.abc import Callable
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
from dpexp.record.fold import load_record
from dpexp.record.record import Record

STEPS: dict[str, Any] = {"steps": 6, "warmup": 5, "phase_steps": 0, "threads": 1}

Devices = list[torch.device]


def failed(dpexp_home: Path, layout: Callable[..., nn.Module], **options: Any) -> Record:
    """The Record of a run with this layout, which must end as a failed verification does.

    A launcher makes the same error of the Record of its ranks.
    """
    config = RunConfig(
        "custom", model="blocks", options={"layout": f"{__file__}:{layout.__name__}"}, **STEPS | options
    )
    with pytest.raises(VerificationError) as error:
        recorded(dpexp_home, config)
    record = load_record(dpexp_home / "runs" / "run")
    assert record.verification["passed"] is False
    assert record.verification["cause"] == error.value.cause
    record.error = error_row(error.value)
    of_ranks = error_of(record, None)
    assert (str(of_ranks), vars(of_ranks)) == (str(error.value), vars(error.value))
    return record


def on_output(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module.register_forward_hook(lambda module, args, output: change(output))


# --- right runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options", "limit"),
    [
        ("single", {}, 1e-5),
        ("whole", {"virtual": 3, "optimizer": "adam", "clip_norm": 0.1, "accumulate": 2}, 1e-5),
        ("hybrid", {"virtual": 2, "options": {"sparse": True}}, 1e-5),
        ("whole", {"virtual": 2, "dtype": "bfloat16"}, 2.0**-5),
    ],
)
def test_a_right_run_equals_a_single_device_in_its_own_type(
    dpexp_home: Path, strategy: str, options: Any, limit: float
) -> None:
    found = recorded(dpexp_home, RunConfig(strategy, **STEPS | options)).verification
    for name, steps in (("first_steps", 4), ("last_step", options.get("accumulate", 1))):
        row = found[name]
        assert (row["passed"], row["steps"], row["note"]) == (True, steps, "")
        assert row["tolerance"] == limit
        errors = [row[f"{kind}_error"] for kind in ("output", "loss", "gradient", "parameter", "update")]
        assert all(0 <= error <= limit for error in errors)


def test_steps_that_a_short_warm_up_lacks_come_after_the_last(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("single", **STEPS | {"warmup": 1})).verification
    assert [found[name]["steps"] for name in ("first_steps", "last_step")] == [1, 4]


class Dropped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Dropout(), nn.Linear(8, 2))


@pytest.mark.parametrize("options", [{"accumulate": 4, "optimizer": "adam"}, {"eval": True}])
def test_a_run_has_the_bits_of_one_that_compares_nothing(dpexp_home: Path, options: Any) -> None:
    config = STEPS | {"virtual": 2, "model": f"{__file__}:Dropped", "phase_steps": 2} | options
    with_check, without = (
        recorded(dpexp_home, RunConfig("whole", check=check, **config), f"check-{check}")
        for check in (True, False)
    )
    for of in (lambda r: r.digest, lambda r: r.steps["loss"], lambda r: r.metrics, lambda r: r.memory_use):
        assert of(with_check) == of(without)
    assert "first_steps" not in without.verification or without.verification["first_steps"] is None


def test_of_a_large_table_the_touched_rows_are_compared(dpexp_home: Path) -> None:
    config = RunConfig("hybrid", model="embedding:rows=120000", virtual=1, optimizer="adagrad", **STEPS)
    found = recorded(dpexp_home, config).verification
    for name in ("first_steps", "last_step"):
        assert "of its 120,000 rows" in found[name]["note"]
        assert found[name]["optimizer_error"] < 1e-6


def test_after_the_last_step_a_model_that_remembers_its_forwards_is_not_called_wrong(
    dpexp_home: Path,
) -> None:
    last = recorded(dpexp_home, RunConfig("single", model="odd_models:Remembers", **STEPS)).verification[
        "last_step"
    ]
    assert (last["passed"], last["note"].partition(":")[0]) == (None, "not comparable")


class Wraps(torch.optim.Optimizer):
    """Has the state and the groups of the optimizer inside of it, as Lookahead has."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.base = torch.optim.Adam(parameters, lr)
        super().__init__(self.base.param_groups, self.base.defaults)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()


def test_an_optimizer_may_have_the_state_of_another_one_inside(dpexp_home: Path) -> None:
    config = RunConfig("single", optimizer=f"{__file__}:Wraps", **STEPS)
    assert recorded(dpexp_home, config).verification["last_step"]["passed"]


# --- wrong ones ------------------------------------------------------------------------------------


def wrong_in_float32(model: Any, devices: Devices) -> nn.Module:
    on_output(model.block2, lambda x: x * 1.001 if x.dtype == torch.float32 else x)
    return model  # type: ignore[no-any-return]


def test_a_bug_in_the_run_s_type_is_found_in_its_first_step(dpexp_home: Path) -> None:
    record = failed(dpexp_home, wrong_in_float32)
    row = record.verification["first_steps"]
    assert (row["worst"]["kind"], row["worst"]["module"]) == ("outputs", "block2")
    assert 1e-4 < row["output_error"] < 1e-2
    assert "in the run's own first steps, in float32: step 1" in record.verification["cause"]
    assert "is of module 'block2': it is 1.001 times" in record.verification["cause"]
    assert record.steps["loss"] == []


def begins_late(model: Any, devices: Devices) -> nn.Module:
    calls: list[None] = []

    def change(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return gradient / 2 if len(calls) > 10 else gradient

    model.block1.weight.register_hook(change)
    return model  # type: ignore[no-any-return]


def test_a_bug_that_begins_late_is_found_after_the_last_step_which_stays_recorded(dpexp_home: Path) -> None:
    record = failed(dpexp_home, begins_late)
    assert record.verification["first_steps"]["passed"] is True
    assert record.verification["last_step"]["worst"]["tensor"] == "block1.weight"
    assert "after the last measured step, from its state" in record.verification["cause"]
    assert len(record.steps["loss"]) == 6
    assert record.digest["weights"]
