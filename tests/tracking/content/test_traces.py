"""A run's steps as MLflow traces in an SQLite store."""

from typing import Any

import pytest
from record_factory import hybrid, whole

from dpexp.record.record import Record
from dpexp.report.analysis.timeline import steps
from dpexp.tracking.content.traces import log_traces, select_steps

# MLflow warns of its own use of what SQLAlchemy deprecated, and of untyped functions of its own.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(uri, experiment id) of a fresh store."""
    from mlflow.tracking import MlflowClient

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    return uri, MlflowClient(uri).create_experiment("traces", artifact_location=(folder / "art").as_uri())


def delivered(store: tuple[str, str], record: Record) -> list[Any]:
    """Log the Record to a new MLflow run; returns the traces that the store then has."""
    from mlflow.tracking import MlflowClient

    uri, experiment = store
    client = MlflowClient(uri)
    run = client.create_run(experiment).info.run_id
    log_traces(uri, experiment, run, record)
    found = client.search_traces(locations=[experiment], run_id=run)
    return sorted(found, key=lambda trace: -int(trace.data.spans[0].inputs["rows"]))


def test_a_runs_traces_are_its_typical_and_its_last_batch(store: tuple[str, str]) -> None:
    record = whole(8)
    for row in list(record.timeline):
        record.timeline.append(row | {"step": row["step"] + 3})
    names = [trace.data.spans[0].name for trace in delivered(store, record)]
    assert len(names) == 2
    assert names[0].endswith("30 rows")
    assert names[1] == "step 3, 10 rows"


def test_replicas_are_spans_inside_parallel_apply_that_overlap(store: tuple[str, str]) -> None:
    trace, *_ = delivered(store, whole(2))
    spans = {span.name: span for span in trace.data.spans}
    first, second = spans["replica 0 on cpu:0"], spans["replica 1 on cpu:1"]
    assert first.parent_id == second.parent_id == spans["parallel_apply"].span_id
    assert first.start_time_ns < second.end_time_ns
    assert second.start_time_ns < first.end_time_ns


def test_spans_carry_shapes_devices_and_bytes(store: tuple[str, str]) -> None:
    trace, *_ = delivered(store, whole(2))
    spans = {span.name: span for span in trace.data.spans}
    replica = spans["replica 1 on cpu:1"]
    assert replica.inputs == {"replica": 1, "device": "cpu:1", "shapes": "(15, 5)"}
    assert replica.outputs["shapes"] == "(15, 2)"
    assert spans["scatter"].inputs["shapes"] == "(30, 5)"
    assert spans["scatter"].outputs["shapes"] == "(15, 5) + (15, 5)"
    assert spans["gather"].outputs["shapes"] == "(30, 2)"
    assert spans["replicate"].outputs["bytes"] == 48


def test_phases_inside_a_phase_are_its_children(store: tuple[str, str]) -> None:
    record = whole(2)
    for row in [row for row in record.timeline if row["phase"] == "scatter"]:
        record.timeline.append(
            row | {"phase": "forward", "start_us": row["start_us"] - 1, "end_us": row["end_us"] + 1200}
        )
    trace, *_ = delivered(store, record)
    spans = {span.name: span for span in trace.data.spans}
    root = trace.data.spans[0]
    assert spans["scatter"].parent_id == spans["forward"].span_id
    assert spans["forward"].parent_id == spans["backward"].parent_id == root.span_id


def test_spans_have_the_durations_of_the_record(store: tuple[str, str]) -> None:
    trace, *_ = delivered(store, whole(2))
    backward = next(span for span in trace.data.spans if span.name == "backward")
    assert backward.end_time_ns - backward.start_time_ns == pytest.approx(500_000, abs=2)


def test_spans_show_four_digits(store: tuple[str, str]) -> None:
    record = whole(2)
    for row in record.timeline:
        row["end_us"] += 0.123456
    trace, *_ = delivered(store, record)
    shown = [span.outputs["ms"] for span in trace.data.spans]
    assert shown == [float(f"{ms:.4g}") for ms in shown]
    assert len(shown) > 5


def test_hybrid_shows_the_transfer_with_its_bytes(store: tuple[str, str]) -> None:
    trace = delivered(store, hybrid())[0]
    transfer = next(span for span in trace.data.spans if span.name == "transfer")
    assert transfer.outputs["bytes"] == 30 * 10 * 4


def test_a_run_of_equal_batches_has_its_typical_and_its_slowest_step() -> None:
    record = whole(2, batches=(30,))
    slow = max(row["end_us"] for row in record.timeline if row["phase"] == "step" and row["step"] == 1) + 9e4
    for row in record.timeline:
        if row["phase"] == "step" and row["step"] == 1:
            row["end_us"] = slow
    usual, slowest = select_steps(steps(record))
    assert slowest.number == 1 != usual.number
    record.timeline = [row for row in record.timeline if row["step"] == 2]
    assert [step.number for step in select_steps(steps(record))] == [2]


def test_a_record_without_timeline_has_no_trace(store: tuple[str, str]) -> None:
    assert select_steps(steps(Record())) == []
    assert delivered(store, Record()) == []
