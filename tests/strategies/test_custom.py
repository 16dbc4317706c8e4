"""custom: layouts as users write them, under torchrun's launcher and in one process."""

from pathlib import Path
from typing import Any

import pytest
from helpers.command_lines import HELPERS, ROOT
from helpers.engine_runs import recorded
from helpers.in_ranks import records
from helpers.printed import write_examples
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prediction import dry_run
from dpexp.engine.prepare import prepare
from dpexp.record.batches import batches
from dpexp.record.view import RecordView

LAYOUTS = HELPERS / "layouts.py"
CASES = ROOT / "tests" / "verification" / "cases"
SHORT = {"strategy": "custom", "batch_size": 10, "steps": 4, "warmup": 1, "phase_steps": 2}
CLIPPED = SHORT | {"clip_norm": 0.01}


def of(layout: str, **options: Any) -> dict[str, Any]:
    return SHORT | {"layout": f"{LAYOUTS}:{layout}"} | options


@pytest.mark.slow
def test_tensor_and_data_parallel_together_train_as_a_single_device(dpexp_home: Path) -> None:
    """Two ranks split the rows, and two split the columns and rows of the weights."""
    (found,) = records(4, of("two_dimensional", mesh="dp=2,tp=2"))
    assert found.verification["passed"] is True
    assert found.verification["gradient_error"] < 1e-12
    assert found.steps["samples"] == [10] * 4
    weights = [row for row in found.device_map if (row["module"], row["parameter"]) == ("block1", "weight")]
    assert [row["rank"] for row in weights] == [0, 1, 2, 3]
    assert {tuple(row["local_shape"]) for row in weights} == {(5, 10)}
    outside = [row for row in found.shapes if row["module"] == "" and row["batch"] == 0]
    assert [(row["replica"], row["inputs"]) for row in outside] == [(rank, [[5, 10]]) for rank in range(4)]
    assert {move.is_backward for move in RecordView(found).moves} == {False, True}
    single = recorded(dpexp_home, RunConfig.from_dict(SHORT | {"strategy": "single", "model": "blocks"}))
    assert found.steps["loss"] == pytest.approx(single.steps["loss"], rel=1e-5)


def test_a_table_is_split_over_ranks_as_docs_show(tmp_path: Path) -> None:
    write_examples("docs/custom-layouts.md", tmp_path)
    layout = {"layout": f"{tmp_path}/table.py:parallelize", "mesh": "tp=2", "devices": "cpu"}
    (found,) = records(2, SHORT | layout | {"model": "embedding:rows=71,dim=16", "optimizer": "adagrad"})
    assert found.verification["passed"] is True
    assert found.verification["gradient_error"] < 1e-12
    rows = [row for row in found.device_map if (row["module"], row["kind"]) == ("embedding", "parameter")]
    assert [(row["rank"], row["local_shape"]) for row in rows] == [(0, [36, 16]), (1, [35, 16])]


def test_without_a_mesh_ranks_are_along_dp() -> None:
    (found,) = records(2, of("data_parallel"))
    assert found.verification["passed"] is True
    assert [len(row["replicas"]) for row in found.device_map] == [1] * 6
    assert RecordView(found).batches[0].split == [5, 5]


def test_a_mesh_may_split_no_rows() -> None:
    (found,) = records(2, of("sharded", mesh="fsdp=2"))
    assert found.verification["passed"] is True
    assert RecordView(found).batches[0].same_rows == ((0, 1),)


def test_shards_made_by_hand_are_verified_by_their_full_tensors() -> None:
    layout = {"layout": f"{CASES}/tensor_parallel.py:right_pair", "model": f"{CASES}/nets.py:Block"}
    (found,) = records(2, CLIPPED | layout | {"mesh": "tp=2", "optimizer": "adam"})
    assert found.verification["passed"] is True
    rows = {(row["module"], row["parameter"], row.get("rank")): row for row in found.device_map}
    assert rows["down", "weight", 1]["local_shape"] == [12, 12]
    assert rows["down", "weight", 1]["shape"] == [12, 24]
    assert rows["first", "weight", None]["replicas"] == ["cpu:1"]


def test_a_pipeline_takes_the_step_of_its_schedule() -> None:
    layout = {"layout": f"{CASES}/pipeline.py:right_schedule", "model": f"{CASES}/nets.py:Chain"}
    (found,) = records(2, CLIPPED | layout | {"mesh": "pp=2", "optimizer": "adagrad"})
    assert found.verification["passed"] is True
    assert found.verification["gradient_error"] < 1e-12
    moved = {move.what for move in RecordView(found).moves}
    assert moved & {"send", "broadcast"}, moved  # between the stages, as they were counted
    held = {(row["module"], row["device"]) for row in found.device_map}
    assert held == {(str(layer), "cpu:0" if layer < 7 else "cpu:1") for layer in range(13)}


def test_a_layout_over_devices_is_one_process() -> None:
    options = {"layout": f"{LAYOUTS}:two_devices"}
    prepared = prepare(RunConfig("custom", virtual=2, options=options))
    assert prepared.execution == "virtual"
    assert prepared.selection.used[1].index == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "custom needs --layout"),
        ({"layout": "nowhere.py:parallelize"}, "there is no file nowhere.py"),
        ({"layout": f"{LAYOUTS}:missing"}, "has no 'missing'"),
        ({"layout": f"{LAYOUTS}:tensor_parallel"}, "give --mesh"),
        ({"layout": f"{LAYOUTS}:one_parameter"}, r"takes \(model\), not \(model, mesh\)"),
        ({"layout": f"{LAYOUTS}:returns_nothing"}, "returned NoneType, not a torch"),
        ({"layout": f"{LAYOUTS}:with_a_short_step"}, r"step does not take \(batch, loss, update, autocast"),
        ({"layout": f"{LAYOUTS}:raises"}, "KeyError: 'block9'"),
        ({"layout": f"{LAYOUTS}:renamed"}, "lacks parameters of the model: block1.bias"),
        ({"layout": f"{LAYOUTS}:added"}, r"the module has parameters of its own: extra\. "),
        ({"layout": f"{LAYOUTS}:cut"}, r"block1.weight has shape \(10, 10\), in the model it has \(20, 10\)"),
    ],
)
def test_a_layout_that_cannot_run_is_refused_before_a_run_opens(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(RunConfig("custom", options=options))


def test_a_dry_run_has_the_ranks_that_compute_each_part_of_a_batch() -> None:
    options = {"layout": f"{LAYOUTS}:two_dimensional", "mesh": "dp=2,tp=2"}
    full, last = batches(dry_run(RunConfig("custom", options=options)))
    assert (full.parts, last.parts, full.same_rows) == ([15, 15], [5, 5], ((0, 1), (2, 3)))


def test_names_of_wrapped_modules_are_those_of_the_model(tmp_path: Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from dpexp.strategies.modules import named_parameters

    inner = checkpoint_wrapper(nn.Linear(2, 2))
    assert list(named_parameters(nn.Sequential(inner))) == ["0.weight", "0.bias"]
