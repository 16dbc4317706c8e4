"""Agreement: what a Record has and its config does not predict."""

from pathlib import Path
from typing import Any

import pytest
from record_factory import hybrid, parameter_row

import dpexp
from dpexp.config.run_config import RunConfig, config_digest
from dpexp.engine.dry_run import dry_run
from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record, Row
from dpexp.study.experiment.agreement import contradictions, unpredicted


def short(strategy: str, **options: Any) -> Record:
    return dpexp.run(strategy, steps=2, check=False, track=False, quiet=True, **options)


def prediction(record: Record) -> Row:
    return dry_run(RunConfig.from_dict(record.config, where="config"))


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


def rates(**changes: float) -> Row:
    return {"median": 2e9, "iqr": 1e8, "min": 1e9, "max": 3e9, "n": 9} | changes


MEMORY = {"bytes": 1200, "row_bytes": 40, "bytes_per_s": rates()}


@pytest.fixture
def probed() -> Record:
    record = hybrid()
    record.config_digest = config_digest(record.config)
    record.work = {"rows": 30, "memory": MEMORY}
    summarize(record)
    assert contradictions(record) == []
    return record


@pytest.mark.parametrize(
    ("forged", "found"),
    [
        ({"memory": {**MEMORY, "bytes_per_s": rates(max=1.5e9)}}, "not the spread of rates"),
        ({"memory": {**MEMORY, "bytes_per_s": rates(min=0.0)}}, "not the spread of rates"),
        ({"memory": {**MEMORY, "row_bytes": 400}}, "rows of 400 bytes, and no table"),
        ({"link": {"bytes": 1200, "bytes_per_s": rates()}}, "its devices are virtual"),
    ],
)
def test_forged_bandwidths_contradict_the_record(probed: Record, forged: Row, found: str) -> None:
    probed.work |= forged
    summarize(probed)
    assert found in "; ".join(contradictions(probed))


def test_a_forged_share_contradicts_the_record(probed: Record) -> None:
    probed.summary["stages"]["lookup_share"] = 0.99
    (found,) = contradictions(probed)
    assert found.startswith("summary.stages.lookup_share is 0.99, but its phases and work give 0.00")
