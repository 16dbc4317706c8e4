"""Proof: right layouts of every kind equal a single device to rounding, wrong ones fail by their error."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from helpers import layouts, planted
from helpers.planted import Planted, on_host, random_batches, wrapped
from torch import nn

import dpexp
from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.verify import batches, verify
from dpexp.measurement.observe import observe
from dpexp.report.verification import unreached
from dpexp.strategies.base import Strategy
from dpexp.strategies.placed import Placed, Shards
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer
from dpexp.verification.result import Result

OPTIONS = {"custom": {"layout": f"{layouts.__file__}:replicated"}, "place": {"place": ["block2=cpu"]}}
"""The options that a strategy does not run without."""
LAYOUTS = [name for name in STRATEGIES if name not in ("single", "ddp", "fsdp")]
"""The strategies that lay a model out in one process; the others would compare it with itself."""


def check(prepared: Prepared, strategy: Strategy | None = None) -> Result:
    return verify(replace(prepared, strategy=strategy or prepared.strategy))


def laid_out(strategy: str, **options: Any) -> Callable[[nn.Module], Placed]:
    made = STRATEGIES[strategy](RunConfig.from_dict({"strategy": strategy, "virtual": 3} | options).options)
    used = tuple(torch.device("cpu", index) for index in range(3))
    return lambda model: made.place(model, used, Timer())


def proof_result(
    model: nn.Module, lay_out: Callable[[nn.Module], Placed] | None = None, **options: Any
) -> Result:
    return planted.proof_result(model, lay_out or laid_out("whole"), random_batches(30, 10, 30), **options)


# --- right layouts ------------------------------------------------------------------------------------


def where_it_computes(prepared: Prepared) -> set[str]:
    """The devices on which the layout of a run computes."""
    made, model = prepared.strategy, copy.deepcopy(prepared.model)
    placed = made.place(model, prepared.selection.used, Timer(prepared.selection.used))
    return {
        str(row["device"])
        for row in observe(placed, [next(prepared.batches(0))], prepared.data.objective.loss)
    }


@pytest.mark.parametrize("strategy", LAYOUTS)
def test_every_layout_equals_the_single_device_to_rounding(strategy: str) -> None:
    prepared = prepare(RunConfig(strategy, virtual=8, batch_size=10, options=OPTIONS.get(strategy, {})))
    assert len(where_it_computes(prepared)) > 1, "it would be compared with itself"
    result = check(prepared)
    assert (result.passed, result.dtype) == (True, torch.float64)
    assert result.worst["outputs"].error < 1e-15
    assert result.worst["gradients"].error < 1e-14


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("config", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}, {"compile": True}])
def test_copies_are_compared_in_float64_whatever_the_run_computes_in(config: dict[str, Any]) -> None:
    strategy = "single" if "compile" in config else "whole"
    result = check(prepare(RunConfig(strategy, virtual=1 if "compile" in config else 2, **config)))
    assert (result.passed, result.dtype) == (True, torch.float64)
    assert result.worst["outputs"].error < 1e-15


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_layout_on_a_gpu_equals_the_host(strategy: str, count: int) -> None:
    where = ",".join([str(devices.accelerators()[0])] * count)
    assert check(prepare(RunConfig(strategy, devices=where, options=OPTIONS.get(strategy, {})))).passed


@pytest.mark.multigpu
@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("backend", ["torch", "portable"])
def test_every_layout_on_all_gpus_equals_the_host(strategy: str, backend: str) -> None:
    assert len(devices.accelerators()) >= 2
    options = {"devices": "auto", "backend": backend, "options": OPTIONS.get(strategy, {})}
    assert check(prepare(RunConfig(strategy, **options))).passed


# --- the optimizer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherNorm(Shards):
    """Finds the norm of all gradients to be ``factor`` times as large."""

    factor: float

    def total_norm(self, gradients: Any) -> torch.Tensor:
        return self.factor * super().total_norm(gradients)


@pytest.mark.parametrize(("limit", "accumulate"), [(1e-6, 2), (1e6, 1)])
def test_a_norm_that_is_wrong_is_found_whether_the_run_clips_by_it_or_not(
    limit: float, accumulate: int
) -> None:
    def verified(factor: float) -> Result:
        options = {"clip_norm": limit, "accumulate": accumulate, "lr": 0.1}
        prepared = prepare(RunConfig.from_dict({"strategy": "single", **options}))
        return check(
            prepared, Planted(place_wrong=lambda model: replace(on_host(model), shards=OtherNorm(factor)))
        )

    assert verified(1.0).passed
    for factor in (0.4, 3.0):
        assert "(fc." in verified(factor).cause


# --- batches and modes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "batch_size", "rows"),
    [(100, 30, [30, 10, 30]), (60, 30, [30, 30, 30]), (40, 30, [30, 10, 10]), (20, 30, [20, 20, 20])],
)
def test_a_batch_with_the_rows_of_the_last_one_is_among_the_steps(
    samples: int, batch_size: int, rows: list[int]
) -> None:
    prepared = prepare(RunConfig("single", data=f"random:samples={samples}", batch_size=batch_size))
    assert [batch.rows for batch in batches(prepared)] == rows


# --- what a forward writes ----------------------------------------------------------------------------


class Kept(nn.Module):
    """Reads one buffer, counts calls, and keeps a mean of its inputs, which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.calls += 1
        return x + self.shift


def kept() -> nn.Module:
    return nn.Sequential(Kept(), nn.Linear(5, 2))


def test_buffers_that_shards_write_from_their_own_rows_are_named_and_not_compared() -> None:
    result = proof_result(kept())
    assert result.passed
    assert any("0.mean" in note and "0.shift" not in note for note in result.notes)


def test_a_buffer_that_a_single_device_does_not_write_is_compared() -> None:
    def shifted(model: Any) -> Placed:
        """What is written is not in the outputs of this step, but in those of the next."""
        model[1].weight.register_hook(lambda gradient: model[0].shift.add_(1).sum() * 0 + gradient)
        return laid_out("whole")(model)

    assert "buffers (0.shift) differ by 1.0e+00" in proof_result(kept(), shifted).cause


# --- hooks on parameters ------------------------------------------------------------------------------


class Masked(nn.Module):
    """Halves a gradient by one hook, and counts finished gradients by another, a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.finished = 0
        self.fc.weight.register_hook(lambda gradient: gradient / 2)
        self.fc.bias.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 3
        self.finished += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


@pytest.mark.parametrize("strategy", ["whole", "place"])
def test_hooks_on_parameters_are_part_of_what_is_verified(strategy: str) -> None:
    options = {"place": ["*=cpu"]} if strategy == "place" else {}
    assert proof_result(Masked(), laid_out(strategy, **options)).passed
    result = proof_result(Masked(), lambda model: on_host(copy.deepcopy(model)))
    assert "the first gradient in backward order that differs is of parameter 'fc." in result.cause


def test_a_layout_that_makes_new_parameters_refuses_hooks_by_name() -> None:
    config = RunConfig("fsdp", options={"block": ("fc",)})
    with pytest.raises(ConfigError, match=r"fsdp .* lose the hooks of fc.weight, fc.bias"):
        STRATEGIES["fsdp"](config.options).prepare(Masked(), ())


# --- the Record ---------------------------------------------------------------------------------------


def test_the_record_has_the_step_and_the_tensor_of_the_largest_error() -> None:
    prepared = prepare(RunConfig("whole", virtual=2))
    found = verify(prepared).entry()
    assert (found["checked"], found["passed"], found["steps"]) == (True, True, 3)
    errors = [error for key, error in found.items() if key.endswith("_error") and error is not None]
    assert len(errors) == 5, "the model has no buffers, and SGD keeps nothing"
    assert found["worst"]["error"] == max(errors)
    failed = check(
        prepared, Planted(place_wrong=wrapped("", lambda module, inputs: 2 * module(inputs)))
    ).entry()
    assert (failed["checked"], failed["passed"], failed["steps"]) == (True, False, 1)
    assert (failed["worst"]["kind"], failed["worst"]["step"]) == ("outputs", 1)


class Branches(nn.Module):
    """One layer is called and not trained, one is trained and not called, and two are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.apart = nn.Linear(5, 2), nn.Linear(5, 2)
        self.left_out = nn.Sequential(nn.Linear(5, 2), nn.Tanh())
        self.cut_off = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        outputs = self.used(x) + nn.functional.linear(x, self.apart.weight, self.apart.bias)
        return outputs + self.cut_off(x).detach()


def test_what_no_step_reaches_is_recorded_and_shown() -> None:
    options: dict[str, Any] = {"devices": "cpu", "steps": 2, "track": False}
    facts = dpexp.run("single", model=f"{__file__}:Branches", **options).verification
    assert facts["unreached"] == {
        "parameters": ["left_out.0.weight", "left_out.0.bias", "cut_off.weight", "cut_off.bias"],
    }
    assert unreached(facts).startswith("not verified: parameters left_out.0.weight, left_out.0.bias, cut_off")
