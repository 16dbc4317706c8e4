"""Delivery to an SQLite store: every fact arrives, every point once, wherever earlier deliveries were cut."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import journals, record_factory
from helpers.command_lines import ROOT
from helpers.mlflow_reader import (
    Death,
    dying,
    everything,
    expected_metrics,
    mlflow_runs,
    only_run,
    steps_of,
)
from mlflow.tracking import MlflowClient

from dpexp import report
from dpexp.config.run_config import RunConfig
from dpexp.record.figures import At, figures
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE
from dpexp.record.fold import finish, fold
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.tracking import content, deliver
from dpexp.tracking.deliver import Upload
from dpexp.tracking.store import Store, StoreError
from dpexp.tracking.sync import sync

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def home(home_with_store: Path) -> Path:
    return home_with_store


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


def store_of(home: Path) -> Store:
    return Store.from_environment(home)


def synced(home: Path, journal: Path) -> None:
    """Deliver as ``runs.py sync RUN`` does."""
    finish(journal)
    (result,) = sync(home, [journal.parent], again=True)
    assert (result.state, result.message.count("without")) == ("delivered", 0), result.message


# --- what goes where -----------------------------------------------------------------------------


def test_a_run_arrives_complete(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "complete")
    journals.observe(journal)
    journals.step(journal, 0, 100)
    journals.phases(journal)
    for name in (PROFILE_TRACE, PROFILE_TABLE):
        (journal.folder / name).write_text("of the profiler")
    synced(home, journals.end(journal))
    found, record = everything(uri, "complete"), fold(journal.path)
    assert found["experiment"] == "dpexp"
    assert (found["name"], found["status"]) == (record.name, "FINISHED")
    assert found["times"] == (content.to_epoch_ms(record.started), content.to_epoch_ms(record.ended))
    of_run = {"steps": "8", "warmup": "1", "phase_steps": "4"}
    assert found["params"] == {"strategy": "whole", "model": "linear", "virtual": "2", **of_run}
    stored = {key: {step: value for step, value, _ in rows} for key, rows in found["metrics"].items()}
    assert stored == expected_metrics(record)
    assert list(stored["loss"].values()) == record.steps["loss"]
    assert stored["accuracy"] == {0: 0.5, 1: 0.75}
    assert stored["step_ms"][0] == pytest.approx(record.summary["step_ms"]["median"], rel=1e-3)
    tags = found["tags"]
    assert (tags["dpexp.run_id"], tags["dpexp.verified"], tags["git.dirty"]) == ("complete", "True", "False")
    assert tags["mlflow.source.git.commit"] == "0" * 40
    assert "whole" in tags["mlflow.note.content"]
    assert found["datasets"] == [("random", record.data["sha256"][:36])]
    assert json.loads(found["artifacts"]["record.json"]) == record.to_dict()
    drawn = {"timeline.html", "phases.png", "layout.png", "trace.json"}
    drawn |= {"shapes.json", "device_map.json", PROFILE_TRACE, PROFILE_TABLE}
    assert drawn <= set(found["artifacts"])


def test_a_run_is_found_at_a_whole_address_with_and_without_a_server(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, page = store_of(home).where("1", "ab").partition(" shows it at ")
    run = "#/experiments/1/runs/ab?workflowType=machine_learning"
    assert (command, page) == ("python scripts/ui.py", f"http://127.0.0.1:5000/{run}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:8080/")
    assert store_of(home).where("1", "ab") == f"https://host:8080/{run}"


def test_a_run_has_few_metrics_beside_its_series_and_they_are_rounded() -> None:
    most = record_factory.whole(8, phases={f"phase {number}": 0.123456789 for number in range(12)})
    for record in (most, record_factory.hybrid(), record_factory.whole(1)):
        single = content.summary_metrics(record)
        assert {"step_ms", "samples_per_s", "peak_MB"} <= single.keys()
        assert all(len(f"{value:.12g}".strip("0").replace(".", "")) <= 6 for value in single.values())
    assert len(figures(At.METRIC)) + content.MOST_PHASES <= content.MOST_SINGLE


def test_a_users_metric_is_kept_apart_from_dpexps_and_from_another_of_nearly_its_name(
    home: Path, uri: str
) -> None:
    journal = journals.begin(home / "runs", "logged")
    journals.step(journal, 0, 10)
    logged = {"loss": 0.123456789, "step_ms": 7.0, "acc@1": 1.0, "time_ms/step": 2.0, "acc_1": 3.0}
    for name, value in logged.items():
        journal.extend({f"metrics.{name}": [value]})
    synced(home, journals.end(journal))
    found = {
        key: [value for _, value, _ in rows] for key, rows in everything(uri, "logged")["metrics"].items()
    }
    kept_apart = {"user/loss": 0.123456789, "user/step_ms": 7.0, "user/time_ms/step": 2.0}
    assert {key: found[key] for key in kept_apart} == {key: [value] for key, value in kept_apart.items()}
    assert (found["acc_1"], found["user/acc_1"]) == ([1.0], [3.0])
    assert len(found["loss"]) == len(found["time_ms/step"]) == 10


def test_the_median_of_the_steps_comes_before_the_time_of_the_last(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "order")
    journal.extend({"steps.loss": [1.0] * 3, "steps.time_ms": [0.123456789] * 3, "steps.samples": [3] * 3})
    synced(home, journals.end(journal))
    run = only_run(uri, "order")
    assert list(run.data.metrics)[:3] == ["step_ms", "samples_per_s", "loss"]
    assert run.data.metrics["step_ms"] == run.data.metrics["time_ms/step"] == 0.1235


def test_params_are_what_runs_differ_by() -> None:
    config = RunConfig("hybrid", virtual=2, run_name="mine", options={"sparse": True}).to_dict()
    shown = content.params(Record(strategy="hybrid", config=config))
    assert shown == {"strategy": "hybrid", "model": "embedding", "virtual": "2", "sparse": "True"}


def test_params_of_a_watched_loop_have_no_defaults() -> None:
    config = {"strategy": "program", "model": "Net", "optimizer": "sgd", "loss": "", "clip_norm": None}
    shown = content.params(Record(strategy="ddp", config=config))
    assert shown == {"strategy": "program", "model": "Net", "optimizer": "sgd"}


def test_a_run_that_cannot_be_judged_has_a_tag() -> None:
    times = [1.0, 2.0, 50.0, 400.0, 1.0, 300.0, 7.0]
    wide = Record(steps={"time_ms": times, "loss": [1.0] * 7, "samples": [30] * 7})
    assert content.tags(RecordView(wide))["dpexp.judged"] == "no"
    assert "dpexp.judged" not in content.tags(RecordView(record_factory.whole(2)))


@pytest.mark.parametrize("first", ["sweep", "run"])
def test_a_sweeps_runs_lie_under_it_with_their_speed_ups_whichever_is_delivered_first(
    home: Path, uri: str, first: str
) -> None:
    sweep = journals.begin(home / "runs", "parent", strategy="sweep")
    sweep.set({"summary.speed_ups": [{"run": "child", "speed_up": 1.5}, {"run": "../gone", "speed_up": 2.0}]})
    run = journals.begin(home / "runs", "child", parent="parent")
    for journal in (sweep, run) if first == "sweep" else (run, sweep):
        synced(home, journals.end(journal))
    synced(home, run.path)
    assert [value for _, value, _ in everything(uri, "child")["metrics"]["speed_up"]] == [1.5]
    assert only_run(uri, "child").data.tags["mlflow.parentRunId"] == only_run(uri, "parent").info.run_id


def test_tables_are_those_of_log_table_and_very_long_ones_are_cut(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "tables")
    synced(home, journal)
    ours = json.loads(content.table(fold(journal).shapes))
    assert ours["columns"][:3] == ["module", "inputs", "outputs"]
    named = {c: [row[i] for row in ours["data"]] for i, c in enumerate(ours["columns"])}
    MlflowClient(uri).log_table(only_run(uri, "tables").info.run_id, named, "theirs.json")
    assert ours == json.loads(everything(uri, "tables")["artifacts"]["theirs.json"])
    rows = [{"batch": 0, "module": str(number)} for number in range(content.MAX_ROWS + 1)]
    many = Record(shapes=rows, device_map=rows[:-1])
    assert {len(json.loads(text)["data"]) for text in content.tables(many).values()} == {content.MAX_ROWS}


def test_long_values_are_cut_with_a_mark(home: Path, uri: str) -> None:
    config = {"model": "m" * 7000, "odd key!": 1}
    synced(home, journals.complete(home / "runs", "long", config=config, environment={"host": "h" * 9000}))
    found = everything(uri, "long")
    assert found["params"]["model"].endswith("… (more in record.json)")
    assert len(found["params"]["model"]) == content.MAX_PARAM
    assert found["params"]["odd key_"] == "1"
    assert len(found["tags"]["host"]) == content.MAX_TAG


def test_a_failed_run_with_losses_that_are_not_finite_has_tags_of_both(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "odd")
    journal.extend({"steps.loss": [1.0, math.inf, math.nan], "steps.time_ms": [1.0, 1.0, 1.0]})
    error = {"type": "ValueError", "message": "too wide", "traceback": "Traceback (most recent call last)"}
    journals.end(journal, "failed", error)
    for _ in range(2):
        synced(home, journal.path)
    found = everything(uri, "odd")
    assert found["status"] == "FAILED"
    assert found["tags"]["dpexp.error"] == "ValueError: too wide"
    assert [value for _, value, _ in found["metrics"]["loss"]] == [1.0, 1.7976931348623157e308, "nan"]
    assert json.loads(found["tags"]["dpexp.nonfinite"]) == {"loss": {"nan": 1, "inf": 1, "first": 1}}
    assert json.loads(found["artifacts"]["record.json"])["steps"]["loss"] == [1.0, "inf", "nan"]


def test_a_figure_that_fails_is_reported_and_the_run_is_delivered(
    home: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(view: RecordView, folder: Path) -> bool:
        raise ValueError("bent")

    monkeypatch.setattr(report, "write_files", failing)
    folder = journals.complete(home / "runs", "bent").parent
    delivery = deliver.deliver(store_of(home), folder)
    assert delivery.complete
    assert "without all figures (ValueError: bent)" in delivery.message
    assert only_run(uri, "bent").info.status == "FINISHED"


# --- once ----------------------------------------------------------------------------------------


def test_points_are_delivered_during_the_run(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "live")
    live = Upload(store_of(home), journal.folder)
    live.send_points()
    assert only_run(uri, "live").data.metrics.keys() == {"step_ms", "samples_per_s"}, "not known yet"
    for first in (0, 50):
        journals.step(journal, first, 50)
        live.send_points()
        assert steps_of(uri, "live") == list(range(first + 50))
    with pytest.raises(StoreError, match="has not ended"):
        live.complete()
    assert only_run(uri, "live").info.status == "RUNNING"
    synced(home, journals.end(journal))
    assert only_run(uri, "live").info.status == "FINISHED"


def test_only_the_points_after_the_byte_that_the_ledger_remembers_are_sent(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "resumed")
    journals.step(journal, 0, 50)
    Upload(store_of(home), journal.folder).send_points()
    journals.step(journal, 50, 50)
    journals.end(journal)
    sent = []
    store: Any = store_of(home)
    store.client.log_points = lambda _, points: sent.extend(points)
    Upload(store, journal.folder).send_points()
    assert {point.step for point in sent} == set(range(50, 100))
    for _ in range(2):
        assert deliver.deliver(store_of(home), journal.folder).complete
    assert steps_of(uri, "resumed") == list(range(100))
    store.client.log_points = pytest.fail
    Upload(store, journal.folder).send_points()


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "arrived"])
def test_a_delivery_cut_at_any_call_is_completed_once(
    home: Path, uri: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at its first call to the store, at its second, …; then another process delivers."""
    monkeypatch.setattr(deliver, "BATCH", 150)
    calls, expected, died = 0, None, True
    while died:
        run_id = f"cut{calls}"
        folder = two_batches(home / "runs", run_id)
        store = store_of(home)
        try:
            with dying(store, calls, arrives):
                Upload(store, folder).complete()
            died = False
        except Death:
            calls += 1
        Upload(store_of(home), folder).complete()
        delivered = comparable(everything(uri, run_id))
        expected = expected or delivered
        assert delivered == expected, f"cut at call {calls}"
    assert calls > 12


def two_batches(runs: Path, run_id: str) -> Path:
    """The folder of a run with two batches of 150 points; everything but its id is fixed."""
    journal = journals.begin(runs, run_id, started="2026-01-01T00:00:00+00:00")
    for first in (0, 60):
        journals.step(journal, first, 60)
    journal.set(status="failed", ended="2026-01-01T00:01:00+00:00", error={"type": "E", "message": "m"})
    journal.close()
    return journal.folder


def comparable(delivered: dict[str, Any]) -> dict[str, Any]:
    """What two runs that did the same have in common: all but id, note and timestamps."""
    points = {key: [(step, value) for step, value, _ in rows] for key, rows in delivered["metrics"].items()}
    own = ("dpexp.run_id", "mlflow.note.content")
    tags = {key: value for key, value in delivered["tags"].items() if key not in own}
    return {**delivered, "metrics": points, "tags": tags, "artifacts": sorted(delivered["artifacts"])}


def test_two_homes_with_copies_of_a_journal_make_one_run(
    home: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look for the MLflow run before the other has made it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    original = journals.complete(tmp_path / "a" / "runs", "both").parent
    shutil.copytree(original, tmp_path / "b" / "runs" / "both")
    folders = [tmp_path / name / "runs" / "both" for name in ("a", "b")]
    with monkeypatch.context() as neither_looks:
        neither_looks.setattr(deliver, "find", lambda *search: None)
        uploads = [Upload(store_of(folder.parents[1]), folder) for folder in folders]
        created = [each.send_points().info.run_id for each in uploads]
    assert len(mlflow_runs(uri, "both")) == 2
    for folder in folders:
        assert deliver.deliver(store_of(folder.parents[1]), folder).complete
    assert only_run(uri, "both").info.run_id == min(created)
    assert steps_of(uri, "both") == list(range(100))


SYNC_ALL = """
import sys
from pathlib import Path
from dpexp.tracking.sync import sync
print(*[result.state for result in sync(Path(sys.argv[1]))])
"""
"""What ``runs.py sync`` does; prints the states."""


def test_concurrent_syncs_deliver_each_run_once(home: Path, uri: str) -> None:
    for number in range(4):
        finish(journals.complete(home / "runs", f"many{number}"))
    command, env = [sys.executable, "-W", "ignore", "-c", SYNC_ALL, str(home)], {"PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    states = [state for process in processes for state in process.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * 2
    assert states == ["delivered"] * 4
    for number in range(4):
        assert steps_of(uri, f"many{number}") == list(range(100))
    assert list(sync(home)) == []


def test_a_run_that_is_deleted_in_mlflow_while_it_runs_is_delivered_again_from_its_first_step(
    home: Path, uri: str
) -> None:
    journal = journals.begin(home / "runs", "deleted")
    journals.step(journal, 0, 50)
    live = Upload(store_of(home), journal.folder)
    live.send_points()
    MlflowClient(uri).delete_run(only_run(uri, "deleted").info.run_id)
    journals.step(journal, 50, 50)
    with pytest.raises(Exception, match="deleted"):
        live.send_points()
    Upload(store_of(home), journal.folder).send_points()
    assert steps_of(uri, "deleted") == list(range(100))
