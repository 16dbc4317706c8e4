"""Agreement: what a Record has and its config does not predict."""

from pathlib import Path
from typing import Any

import pytest
from command_lines import ROOT
from record_factory import parameter_row

import dpexp
from dpexp.config.run_config import RunConfig
from dpexp.engine.dry_run import dry_run
from dpexp.record.record import Record, Row
from dpexp.study.experiment.agreement import flops_differ, sweep_disagreements, unpredicted
from dpexp.study.experiment.records import run_records, sweep_record


def short(strategy: str, **options: Any) -> Record:
    return dpexp.run(strategy, steps=2, check=False, track=False, quiet=True, **options)


def prediction(record: Record) -> Row:
    return dry_run(RunConfig.from_dict(record.config, where="config"), with_work=True)


@pytest.mark.parametrize("options", [{"strategy": "hybrid", "sparse": True}, {"strategy": "single"}])
def test_a_run_is_as_predicted_whatever_its_optimizer_keeps(
    dpexp_home: Path, options: dict[str, Any]
) -> None:
    record = short(**options, optimizer="adam")
    assert any(row["kind"] == "optimizer" for row in record.device_map)
    assert unpredicted(record, prediction(record)) == []
    record.device_map.append(parameter_row("fc", "more", [5], "cpu", []))
    assert unpredicted(record, prediction(record)) == ["device_map is not what its config predicts"]


def test_devices_that_the_machine_chose_are_compared_where_the_accelerators_are_the_same(
    dpexp_home: Path,
) -> None:
    record = short("whole", virtual=2)
    record.config = {**record.config, "virtual": None, "devices": "auto"}
    here = prediction(record)
    on_gpus = {"used": ["cuda:0", "cuda:1"], "output": "cuda:0"}
    assert unpredicted(record, {**here, "devices": on_gpus}) == []
    record.devices = {**record.devices, **on_gpus}
    record.execution = "real"
    assert unpredicted(record, {**here, "devices": {"used": ["cpu:0"], "output": "cpu:0"}}) == []
    record.config = {**record.config, "devices": "cpu"}
    assert "execution is not what its config predicts" in unpredicted(record, here)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "whole", "virtual": 2, "model": "cnn"},
        {"strategy": "functional", "virtual": 2, "model": "mlp", "autocast": "bfloat16"},
        {"strategy": "hybrid", "virtual": 1, "sparse": True},
        {"strategy": "block", "virtual": 3},
        {"strategy": "single", "model": "mlp", "eval": True},
    ],
    ids=lambda options: options["strategy"] + options.get("autocast", ""),
)
def test_operations_and_bytes_of_a_step_are_predicted_without_data(
    dpexp_home: Path, options: dict[str, Any]
) -> None:
    record = short(**options, phase_steps=1)
    expected = prediction(record)
    assert expected["work"]["flops"] == record.work["flops"]
    assert unpredicted(record, expected) == []
    record.work["flops"] = {**record.work["flops"], "forward": record.work["flops"]["forward"] + 2}
    assert unpredicted(record, expected) == ["work.flops is not what its config predicts"]


@pytest.mark.parametrize(("strategy", "key"), [("whole", "bytes"), ("hybrid", "moved_back")])
def test_bytes_that_the_config_does_not_predict_are_found(dpexp_home: Path, strategy: str, key: str) -> None:
    record = short(strategy, virtual=1 + (strategy == "whole"))
    expected = prediction(record)
    for row in (row for row in record.shapes if key in row):
        row[key] = {name: 2 * count for name, count in row[key].items()}
    assert unpredicted(record, expected) == ["shapes: the bytes of a call is not what its config predicts"]


def test_a_count_that_leaves_out_more_operators_may_be_lower_and_not_higher() -> None:
    computed = {"flops": {"forward": 100}, "not_counted": ["add"]}
    for count, left_out, differs in [
        (100, ["add"], False),
        (99, ["add"], True),
        (101, ["add"], True),
        (60, ["add", "attention"], False),
        (101, ["add", "attention"], True),
        (101, [], False),
        (99, [], True),
    ]:
        recorded = {"flops": {"forward": count}, "not_counted": left_out}
        assert flops_differ(recorded, computed) is differs, (count, left_out)
    assert not flops_differ({}, computed)


def _faster(sweep: Record) -> None:
    sweep.summary["speed_ups"][1]["speed_up"] *= 2


SWEEPS: dict[str, Any] = {
    "summary.speed_ups": _faster,
    "summary.wall_s.whole.r1": lambda sweep: sweep.summary.update({"wall_s.whole.r1": 0.001}),
    "summary.wall_s is of other runs": lambda sweep: sweep.summary.update({"wall_s.gone.r1": 9}),
    "summary.failed": lambda sweep: sweep.summary.update(failed=3),
    "is of sweep": lambda sweep: setattr(sweep, "run_id", "0" * 12),
}


@pytest.mark.parametrize("found", SWEEPS)
def test_a_sweep_that_its_runs_contradict_is_found(found: str) -> None:
    folder = ROOT / "experiments" / "whole_vs_block" / "records" / "cpu"
    sweep, runs = sweep_record(folder), run_records(folder)
    assert list(sweep_disagreements(sweep, runs)) == []
    SWEEPS[found](sweep)
    assert found in "; ".join(sweep_disagreements(sweep, runs))
