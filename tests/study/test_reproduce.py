"""Reproducing a run: equal where required, and the first step at which two runs differ."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lines import script
from record_factory import whole

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig, config_digest
from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.report import terminal
from dpexp.study.reproduce import config_of, reproduce
from dpexp.study.reproduction import Reproduction, compare_records, reproduction_sections

pytestmark = pytest.mark.usefixtures("forked_child_runs")


def pair() -> tuple[Record, Record]:
    record = whole(2)
    record.digest = {"weights": "a" * 64, "outputs": "b" * 64}
    record.config_digest = config_digest(record.config)
    return record, copy.deepcopy(record)


def checked(result: Reproduction, what: str) -> tuple[bool | None, bool, str]:
    (check,) = [check for check in result.checks if check.what == what]
    return check.is_equal, check.is_required, check.details


def test_a_run_of_this_machine_comes_out_bitwise_equal(dpexp_home: Path, tmp_path: Path) -> None:
    record = dpexp.run(RunConfig("whole", virtual=2, steps=5, threads=1, track=False), quiet=True)
    path = tmp_path / "record.json"
    path.write_text(record.to_json())
    done = script("runs.py", "reproduce", path, "--runs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bitwise equal" in done.stdout
    assert "equal in all 5 steps" in done.stdout
    assert "95% interval" in done.stdout

    losses = json.loads(path.read_text())
    losses["steps"]["loss"][3] *= 1.5
    losses["digest"]["weights"] = "0" * 64
    result = reproduce(Record.from_dict(losses))
    assert not result.is_reproduced
    assert checked(result, "losses")[2].startswith("part at step 3 by ")
    assert checked(result, "outputs at the end")[0] is True


@pytest.mark.parametrize(("fact", "value"), [("torch", "9.9.9"), ("cpu", "another vendor's")])
def test_bits_need_not_be_equal_under_another_torch_or_cpu_but_shapes_must(fact: str, value: str) -> None:
    then, now = pair()
    now.environment[fact] = value
    now.digest["weights"] = "0" * 64
    result = compare_records(then, now)
    assert checked(result, "weights at the end") == (False, False, "other bits")
    assert result.is_reproduced
    now.shapes[1] = {**now.shapes[1], "device": "cpu:7"}
    result = compare_records(then, now)
    assert not result.is_reproduced
    assert "row 1" in checked(result, "shapes")[2]
    assert "cpu:7" in checked(result, "shapes")[2]


@pytest.mark.parametrize("rows", ["shapes", "device_map"])
def test_a_record_is_reproduced_by_a_later_dpexp_whose_rows_have_more_keys(rows: str) -> None:
    then, now = pair()
    setattr(now, rows, [{**row, "more": 1} for row in getattr(now, rows)])
    assert compare_records(then, now).is_reproduced
    assert not compare_records(now, then).is_reproduced
    assert "more 1 -> None" in checked(compare_records(now, then), rows.replace("_", " "))[2]


def test_a_difference_of_the_environment_names_what_it_affects() -> None:
    then, now = pair()
    now.environment |= {"threads": 4, "host": "another"}
    then.environment["packages"], now.environment["packages"] = {"numpy": "1"}, {"numpy": "2"}
    found = [(one.what, one.affects) for one in compare_records(then, now).differences]
    assert found == [("threads", "bits"), ("host", "time"), ("numpy", "nothing expected")]


def faster(factor: float, *changes: float) -> list[Record]:
    """Repeats of the pair whose steps take these times as long."""
    return [whole(2, step_ms=2.0 * factor * change) for change in changes]


def test_times_are_compared_by_an_interval_over_new_runs() -> None:
    then, _ = pair()
    then.steps["time_ms"] = whole(2, step_ms=2.0).steps["time_ms"]
    summarize(then)
    now, *repeats = faster(1.0, 1.0, 1.03, 0.98)
    now.config_digest, now.digest, now.data = then.config_digest, then.digest, then.data
    result = compare_records(then, now, repeats)
    assert checked(result, "time of a step")[0] is True
    assert result.is_reproduced

    now.steps["time_ms"] = faster(10.0, 1.0)[0].steps["time_ms"]
    result = compare_records(then, now, faster(10.0, 1.03, 0.98))
    assert checked(result, "time of a step")[:2] == (False, False)
    assert terminal.terminal_text(reproduction_sections(result)).startswith("Reproduced, with other times")

    (once,) = [check for check in compare_records(then, now).checks if check.what == "time of a step"]
    assert once.is_equal is None
    assert "from one run each" in once.details


@pytest.mark.parametrize("fact", [{"cpu": "Another CPU"}, {"cpu_count": 64}, {"threads": 9}])
def test_times_of_another_kind_of_machine_are_not_comparable(fact: dict[str, Any]) -> None:
    then, now = pair()
    now.environment |= fact
    _, _, details = checked(compare_records(then, now), "time of a step")
    assert details.startswith(f"not comparable: {next(iter(fact))}")


def test_times_of_another_kind_of_execution_are_not_comparable() -> None:
    then, now = pair()
    now.execution = "real"
    result = compare_records(then, now)
    assert checked(result, "time of a step")[2] == "not comparable: virtual then, real now"


# --- facts that must be equal ---------------------------------------------------------------------


def _shape(record: Record) -> None:
    record.shapes[1] = {**record.shapes[1], "outputs": [[99, 2]]}


def _device_map(record: Record) -> None:
    record.device_map[0] = {**record.device_map[0], "replicas": []}


def _fewer_steps(record: Record) -> None:
    for values in record.steps.values():
        del values[-10:]
    summarize(record)


DIFFERENT: dict[str, Callable[[Record], object]] = {
    "execution": lambda record: setattr(record, "execution", "real"),
    "status": lambda record: setattr(record, "status", "failed"),
    "not verified": lambda record: record.verification.update(checked=False, passed=None),
    "failed verification": lambda record: record.verification.update(passed=False),
    "verified in another type": lambda record: record.verification.update(dtype="float32"),
    "data": lambda record: record.data.update(sha256="f" * 64),
    "devices": lambda record: record.devices.update(used=["cuda:0", "cuda:1"]),
    "output device": lambda record: record.devices.update(output="cpu:1"),
    "shapes": _shape,
    "device map": _device_map,
    "rows of the steps": lambda record: record.steps.update(samples=[30] * 100),
    "fewer steps": _fewer_steps,
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
    assert "NOT REPRODUCED" in terminal.terminal_text(reproduction_sections(result))


def test_dirty_code_is_a_warning() -> None:
    then, now = pair()
    then.environment["git"] = {**then.environment["git"], "dirty": True}
    (warning,) = compare_records(then, now).warnings
    assert "uncommitted" in warning


def test_the_recorded_threads_are_requested() -> None:
    assert config_of(whole(2))["threads"] == 2


def test_a_record_without_a_config_cannot_be_repeated() -> None:
    with pytest.raises(ConfigError, match="cannot be repeated"):
        config_of(Record(run_id="ab", name="bare"))


def test_a_config_of_another_dpexp_names_what_is_unknown() -> None:
    record: Any = whole(2)
    record.config["backend"] = "gone"
    with pytest.raises(ConfigError, match="gone"):
        reproduce(record)


def test_the_file_of_a_record_that_is_not_there_is_named() -> None:
    done = script("runs.py", "reproduce", "gone.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no file gone.json in ")
