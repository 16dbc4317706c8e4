"""Odd models: layouts and verification take what is unusual in a model."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.in_ranks import in_ranks, records
from helpers.planted import Planted, on_host

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prediction import predict
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.placed import Placed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # likewise
def test_a_compiled_submodule_is_placed_predicted_and_verified() -> None:
    options = {"place": ("middle=cpu:1",)}
    prepared = prepare(RunConfig("place", model="helpers.odd_models:Compiled", virtual=2, options=options))
    rows = predict(prepared, [next(prepared.batches(0))]).shapes
    assert {row["device"] for row in rows if row["module"] == "middle"} == {"cpu:1"}
    assert verify(prepared).passed


def test_fsdp_refuses_a_scalar_parameter_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"fsdp splits parameters by their rows, and scale is a scalar"):
        prepare(
            RunConfig("fsdp", model="helpers.odd_models:Scalar", devices="cpu", options={"block": ("first",)})
        )


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_a_small_gradient_behind_float32_is_judged_by_its_own_rounding(share: float) -> None:
    """The layout rounds the router otherwise, and has all of its gradient, or a part."""

    def lay_out(model: Any) -> Placed:
        model.router.halves = True
        if share < 1:
            model.router.weight.register_hook(lambda gradient: share * gradient)
        return on_host(model)

    prepared = prepare(RunConfig("single", model="helpers.odd_models:Gated", devices="cpu"))
    found = verify(replace(prepared, strategy=Planted(place_wrong=lay_out)))
    assert found.passed is (share == 1), found.cause
    if share < 1:
        assert "of parameter 'router.weight' (by 8.0e-01)" in found.cause


@pytest.mark.parametrize("strategy", ["single", "whole"])
def test_a_module_that_is_called_inside_of_a_transform_of_torch_func_is_verified(strategy: str) -> None:
    devices: dict[str, Any] = {"virtual": 2} if strategy == "whole" else {"devices": "cpu"}
    found = verify(prepare(RunConfig(strategy, model="helpers.odd_models:Differentiates", **devices)))
    assert found.passed, found.cause


def verified(group: ProcessGroup, model: str) -> tuple[bool | None, str]:
    found = verify(prepare(RunConfig("fsdp", model=f"helpers.odd_models:{model}"), group=group))
    return found.passed, found.cause


def why_not(group: ProcessGroup, model: str) -> str:
    with pytest.raises(RuntimeError) as raised:
        verified(group, model)
    return str(raised.value)


def test_fsdp_takes_a_list_of_parameters_and_says_why_it_takes_no_gradient_inside_of_a_forward() -> None:
    cases = ("verified:Listed", "why_not:Differentiates", "why_not:Reads")
    listed, gradient, read = in_ranks(2, __file__, *cases).values()
    assert listed == [[True, ""]] * 2
    assert "fsdp frees the parameters of a block after its forward" in gradient[0]
    assert "use ddp" in gradient[0]
    assert "reads them without a call" in read[0]


def test_fsdp_refuses_to_gather_a_list_of_parameters_by_itself() -> None:
    with pytest.raises(ConfigError, match=r"--block middle: .* and a ParameterList is not"):
        prepare(
            RunConfig(
                "fsdp", model="helpers.odd_models:Listed", devices="cpu", options={"block": ("middle",)}
            )
        )


def test_ddp_does_not_miss_parameters_that_backward_reaches_through_a_checkpoint() -> None:
    prepare(RunConfig("ddp", model="helpers.odd_models:CheckpointedFirst", devices="cpu"))


def test_a_forward_that_casts_to_a_type_of_its_own_is_told_to_take_that_of_a_parameter() -> None:
    with pytest.raises(ConfigError, match=r"dpexp casts all parameters .* x\.to\(self\.fc\.weight\.dtype\)"):
        prepare(RunConfig("single", model="helpers.odd_models:Casts", devices="cpu"))


def test_an_output_with_the_rows_in_dimension_one_is_right_in_ranks_and_refused_in_replicas() -> None:
    options = {"model": "helpers.odd_models:Recurrent", "batch_size": 6, "steps": 1, "phase_steps": 0}
    (found,) = records(2, options | {"strategy": "ddp"})
    assert found.verification["passed"], found.verification["cause"]
    with pytest.raises(
        ConfigError, match=r"outputs\[1\] has shape \(2, 6, 5\), with the 6 rows in dimension 1"
    ):
        prepare(RunConfig.from_dict(options | {"strategy": "whole", "virtual": 2}))


@pytest.mark.parametrize("model", ["Remembers", "OwnNumbers"])
def test_a_model_whose_steps_depend_on_more_than_a_state_is_not_comparable(model: str) -> None:
    found = verify(prepare(RunConfig("whole", model=f"helpers.odd_models:{model}", virtual=2)))
    assert (found.passed, found.cause) == (None, "")
    assert "register_buffer" in found.notes[0]
