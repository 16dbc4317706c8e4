"""Reproducing a run: equal where required, and the first step at which two runs differ."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command_lines import script
from helpers.record_factory import whole

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.record import Record
from dpexp.report import terminal
from dpexp.study.reproduce import Reproduction, changed_files, compare_records, config_of, reproduce

pytestmark = pytest.mark.usefixtures("forked_child_runs")


def pair() -> tuple[Record, Record]:
    record = whole(2)
    record.digest = {"weights": "a" * 64, "outputs": "b" * 64}
    return record, copy.deepcopy(record)


def checked(result: Reproduction, what: str) -> tuple[bool | None, bool, str]:
    (check,) = [check for check in result.checks if check.what == what]
    return check.is_equal, check.is_required, check.details


def test_a_run_of_this_machine_comes_out_bitwise_equal(dpexp_home: Path, tmp_path: Path) -> None:
    record = dpexp.run(RunConfig("whole", virtual=2, steps=5, threads=1, track=False), quiet=True)
    path = tmp_path / "record.json"
    path.write_text(record.to_json())
    done = script("runs.py", "reproduce", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights at the end, bit by bit" in done.stdout
    assert "DIFFERS" not in done.stdout


def test_a_file_that_changed_is_reported_before_anything_runs(dpexp_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(b"12345678" * 50)
    data = f"text:{path},length=8"
    own = dpexp.run(RunConfig("single", steps=2, track=False, model="rnn", data=data), quiet=True)
    assert changed_files(own) == []
    path.write_text(path.read_text().replace("5", "6"))
    warnings: list[str] = []
    losses = json.loads(own.to_json())
    losses["steps"]["loss"][1] = 0.0
    reproduced = reproduce(Record.from_dict(losses), warnings.append)
    (warning,) = warnings
    assert warning.startswith(
        f"{path} has changed since the run (SHA-256 {own.files[0]['sha256'][:12]}… then"
    )
    assert not reproduced.is_reproduced
    assert checked(reproduced, "data")[:2] == (False, True)
    assert checked(reproduced, "losses")[2].startswith("number ")


@pytest.mark.parametrize(("fact", "value"), [("torch", "9.9.9"), ("cpu", "another vendor's")])
def test_bits_need_not_be_equal_under_another_torch_or_cpu_but_shapes_must(fact: str, value: str) -> None:
    then, now = pair()
    now.environment[fact] = value
    now.digest["weights"] = "0" * 64
    result = compare_records(then, now)
    assert checked(result, "weights at the end, bit by bit")[:2] == (False, False)
    assert [what for what, *_ in result.differences] == [fact]
    assert result.is_reproduced
    now.shapes[1] = {**now.shapes[1], "device": "cpu:7"}
    result = compare_records(then, now)
    assert not result.is_reproduced
    assert "number 1" in checked(result, "shapes")[2]
    assert "cpu:7" in checked(result, "shapes")[2]


def test_a_record_is_reproduced_by_a_later_dpexp_whose_rows_have_more_keys() -> None:
    then, now = pair()
    now.shapes = [{**row, "more": 1} for row in now.shapes]
    assert compare_records(then, now).is_reproduced
    assert not compare_records(now, then).is_reproduced
    assert "'more': 1} then" in checked(compare_records(now, then), "shapes")[2]


DIFFERENT: dict[str, Callable[[Record], object]] = {
    "execution": lambda record: setattr(record, "execution", "real"),
    "status": lambda record: setattr(record, "status", "failed"),
    "verification": lambda record: record.verification.update(passed=False),
    "data": lambda record: record.data.update(sha256="f" * 64),
    "devices": lambda record: record.devices.update(output="cpu:1"),
    "shapes": lambda record: record.shapes[1].update(outputs=[[99, 2]]),
    "device map": lambda record: record.device_map[0].update(replicas=[]),
    "rows of the steps": lambda record: record.steps.update(samples=[30] * 100),
    "phases": lambda record: record.phases.pop("replicate"),
    "weights": lambda record: record.digest.update(weights="0" * 64),
    "losses": lambda record: record.steps.update(loss=[0.0] * 100),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_run_with_another_fact_is_not_reproduced(name: str) -> None:
    then, now = pair()
    assert compare_records(then, now).is_reproduced
    DIFFERENT[name](then)
    result = compare_records(then, now)
    assert not result.is_reproduced
    assert "NOT REPRODUCED" in terminal.terminal_text(result.sections())


def test_other_code_is_shown_and_not_an_error() -> None:
    then, now = pair()
    then.environment["git"] = {**then.environment["git"], "dirty": True}
    result = compare_records(then, now)
    assert result.is_reproduced
    ((what, before, _),) = result.differences
    assert (what, before.endswith(" with uncommitted changes")) == ("commit", True)


def test_a_repeat_has_the_recorded_threads_and_needs_a_config_that_is_known() -> None:
    record = whole(2)
    assert config_of(record)["threads"] == 2
    with pytest.raises(ConfigError, match="cannot be repeated"):
        config_of(Record(run_id="ab", name="bare"))
    record.config["backend"] = "gone"
    with pytest.raises(ConfigError, match="gone"):
        reproduce(record)


def test_the_file_of_a_record_that_is_not_there_is_named() -> None:
    done = script("runs.py", "reproduce", "gone.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no file gone.json in ")
