"""Delivery into the embedded store: every fact in its place, every point once, whatever was cut before."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import journals
import pytest
from mlflow.tracking import MlflowClient
from mlflow_reader import everything, history, mlflow_runs, only_run

from dpexp.record import JOURNAL, Journal, JournalReader, finish, fold
from dpexp.tracking import content, ledger, points, sync
from dpexp.tracking.errors import GoneError
from dpexp.tracking.store import Store
from dpexp.tracking.upload import Upload

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy, among themselves


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's file as it is before the first run: copied, since making one takes a second."""
    home = tmp_path_factory.mktemp("template")
    Store.of(home).open()
    with sqlite3.connect(home / "mlflow.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return home / "mlflow.db"


@pytest.fixture
def home(dpexp_home: Path, empty_store: Path) -> Path:
    shutil.copyfile(empty_store, dpexp_home / "mlflow.db")
    return dpexp_home


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


def opened(home: Path) -> Store:
    store = Store.of(home)
    store.open()
    return store


def deliver(home: Path, journal: Path) -> str:
    """Deliver as ``runs.py sync`` does; returns the state."""
    finish(journal)
    (result,) = sync.deliver(home, [journal.parent], again=True)
    assert result.is_well, result.message
    return result.state


def steps_of(uri: str, run_id: str, key: str = "loss") -> list[int]:
    return [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, key)]


# --- what goes where -----------------------------------------------------------------------------


def test_a_run_arrives_with_everything_that_design_names(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "complete")
    deliver(home, journal)
    there, record = everything(uri, "complete"), fold(journal)
    assert there["experiment"] == "dpexp"
    assert (there["name"], there["status"]) == (record.name, "FINISHED")
    assert there["times"] == (content.millis(record.started), content.millis(record.ended))
    assert there["params"]["batch_size"] == "30"
    assert there["params"]["strategy"] == "whole"
    assert [value for _, value, _ in there["metrics"]["loss"]] == record.steps["loss"]
    assert [value for _, value, _ in there["metrics"]["time_ms/step"]] == record.steps["time_ms"]
    assert [step for step, _, _ in there["metrics"]["time_ms/forward"]] == [0, 1, 2]
    assert [value for _, value, _ in there["metrics"]["accuracy"]] == [0.5, 0.75]
    (median,) = there["metrics"]["summary/step_ms/median"]
    assert median[1] == record.summary["step_ms"]["median"]
    assert there["tags"]["dpexp.run_id"] == "complete"
    assert there["tags"]["dpexp.verified"] == "True"
    assert there["tags"]["git.dirty"] == "True"
    assert there["tags"]["mlflow.source.git.commit"] == "0123abcd"
    assert "whole" in there["tags"]["mlflow.note.content"]
    assert there["datasets"] == [("random", ("ab" * 32)[:36])]
    assert json.loads(there["artifacts"]["record.json"]) == record.to_dict()
    pictures = {"timeline.png", "timeline.html", "phases.png", "trace.json"}
    assert pictures | {"shapes.json", "device_map.json"} <= set(there["artifacts"])


def test_tables_are_those_of_log_table(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "tables")
    deliver(home, journal)
    client, run = MlflowClient(uri), only_run(uri, "tables")
    ours = json.loads(content.table(fold(journal).device_map))
    client.log_table(
        run.info.run_id,
        {c: [row[i] for row in ours["data"]] for i, c in enumerate(ours["columns"])},
        "theirs.json",
    )
    theirs = everything(uri, "tables")["artifacts"]["theirs.json"]
    assert ours == json.loads(theirs)


def test_long_values_arrive_whole_in_an_artifact_and_say_so(home: Path, uri: str) -> None:
    config = {"model": "m" * 7000, "odd key!": 1}
    journal = journals.complete(home / "runs", "long", config=config, environment={"host": "h" * 9000})
    deliver(home, journal)
    there = everything(uri, "long")
    assert there["params"]["model"].endswith("… (whole in long_values.json)")
    assert len(there["params"]["model"]) == content.MAX_PARAM
    assert len(there["tags"]["host"]) == content.MAX_TAG
    whole = json.loads(there["artifacts"]["long_values.json"])
    assert whole == {"params": {"model": "m" * 7000, "odd key!": "1"}, "tags": {"host": "h" * 9000}}
    assert deliver(home, journal) == "delivered"


def test_inf_and_nan_arrive_with_a_flag(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "odd")
    journal.extend({"steps.loss": [1.0, math.inf, math.nan], "steps.time_ms": [1.0, 1.0, 1.0]})
    deliver(home, journals.end(journal))
    deliver(home, journal.path)
    there = everything(uri, "odd")
    largest = 1.7976931348623157e308
    assert [value for _, value, _ in there["metrics"]["loss"]] == [1.0, largest, "nan"]
    assert json.loads(there["tags"]["dpexp.nonfinite"]) == {"loss": {"nan": 1, "inf": 1, "first": 1}}
    assert json.loads(there["artifacts"]["record.json"])["steps"]["loss"] == [1.0, "inf", "nan"]


def test_a_failed_run_says_why(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "failed")
    error = {"type": "ValueError", "message": "too wide", "traceback": "Traceback (most recent call last)"}
    deliver(home, journals.end(journal, "failed", error))
    there = everything(uri, "failed")
    assert there["status"] == "FAILED"
    assert there["tags"]["dpexp.error"] == "ValueError: too wide"
    assert "Traceback" in json.loads(there["artifacts"]["record.json"])["error"]["traceback"]


def test_a_sweep_is_the_parent_of_its_runs_whoever_comes_first(home: Path, uri: str) -> None:
    sweep = journals.begin(home / "runs", "sweep", name="all layouts", experiment="layouts", strategy="sweep")
    for run_id in ("child1", "child2"):
        deliver(home, journals.complete(home / "runs", run_id, experiment="layouts", parent="sweep"))
    assert only_run(uri, "sweep").info.status == "RUNNING"
    deliver(home, journals.end(sweep))
    parent = only_run(uri, "sweep")
    assert parent.info.status == "FINISHED"
    for run_id in ("child1", "child2"):
        assert only_run(uri, run_id).data.tags["mlflow.parentRunId"] == parent.info.run_id


def test_markup_in_a_name_stays_text_in_every_page(home: Path, uri: str) -> None:
    name = "<script>alert(1)</script>"
    deliver(home, journals.complete(home / "runs", "markup", name=name))
    there = everything(uri, "markup")
    assert there["name"] == name
    assert name.encode() not in there["artifacts"]["timeline.html"]
    assert name not in there["tags"]["mlflow.note.content"]


ODD = [1.5, math.inf, -math.inf, math.nan, 0.0, 1e-320, 3]


def tables(path: Path, run_id: str) -> list[list[Any]]:
    """The rows of a run in both tables of points, without its id."""
    columns = "key, value, typeof(value), timestamp, step, is_nan, typeof(is_nan)"
    with closing(sqlite3.connect(path)) as connection:
        return [
            connection.execute(
                f"SELECT {columns} FROM {table} WHERE run_uuid = ? ORDER BY 1, 4, 5, 2", (run_id,)
            ).fetchall()
            for table in ("metrics", "latest_metrics")
        ]


def test_points_are_the_very_rows_that_mlflow_itself_writes(home: Path) -> None:
    store, known = opened(home), list(ODD)
    assert store._inserts
    experiment = store.experiment_id("dpexp")
    ours, theirs = (store.client.create_run(experiment).info.run_id for _ in range(2))
    batches = [
        [
            content.Point(key, value, 1000 + step // 3, step)
            for key in "ab"
            for step, value in enumerate(known)
        ],
        [
            content.Point("a", 7.0, 1000, 3),
            content.Point("b", 7.0, 2000, 99),
            content.Point("a", 1.5, 1000, 0),
        ],
    ]
    for batch in batches:
        store.log(ours, batch)
        store._inserts = False
        store.log(theirs, batch)
        store._inserts = True
    assert tables(home / "mlflow.db", ours) == tables(home / "mlflow.db", theirs)
    assert len(tables(home / "mlflow.db", ours)[0]) == 2 * len(known) + 2


def test_points_go_through_mlflows_client_where_its_tables_are_others(home: Path, uri: str) -> None:
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("ALTER TABLE metrics ADD COLUMN of_tomorrow TEXT")
    store = opened(home)
    assert (store._inserts, store.batch) == (False, 1000)
    deliver(home, journals.complete(home / "runs", "tomorrow"))
    assert steps_of(uri, "tomorrow") == list(range(100))


def test_points_of_a_deleted_run_are_refused(home: Path) -> None:
    store = opened(home)
    run_id = store.client.create_run(store.experiment_id("dpexp")).info.run_id
    store.client.delete_run(run_id)
    for gone, words in ((run_id, "is deleted"), ("nobody", "is not there")):
        with pytest.raises(GoneError, match=words):
            store.log(gone, [content.Point("loss", 1.0, 1, 0)])
    assert tables(home / "mlflow.db", run_id) == [[], []]


def test_lists_that_are_set_as_a_whole_are_series_too() -> None:
    entry = {"at": 7, "set": {"phases": {"forward": [1.0, 2.0]}, "config": {"block": ["a"]}, "shapes": [{}]}}
    assert list(content.points(entry)) == [
        content.Point("time_ms/forward", 1.0, 7, 0),
        content.Point("time_ms/forward", 2.0, 7, 1),
    ]


# --- once ----------------------------------------------------------------------------------------


def test_delivered_again_nothing_is_there_twice(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "again")
    deliver(home, journal)
    first = everything(uri, "again")
    deliver(home, journal)
    (journal.parent / ledger.LEDGER).unlink()
    deliver(home, journal)
    assert everything(uri, "again") == first


class Cut(BaseException):  # nothing catches an end
    """The uploader dies here."""


class Last:
    """Counts calls to a store: the n-th is made or not, and never returns."""

    def __init__(self, calls: int, arrives: bool) -> None:
        self._left, self._arrives = calls, arrives

    def watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return method(*args, **kwargs)
            if self._arrives:
                method(*args, **kwargs)
            raise Cut(method)

        return call


class CutClient:
    """MLflow's own client, until the last call."""

    def __init__(self, client: MlflowClient, last: Last) -> None:
        self._client, self._last = client, last

    def __getattr__(self, name: str) -> Any:
        return self._last.watched(getattr(self._client, name))


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "arrived"])
def test_a_delivery_cut_at_any_call_is_completed_once(
    home: Path, uri: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call to the store, in turn, is the last of its process; then another process delivers."""
    monkeypatch.setattr(points, "BATCH", 1500)
    calls, reference = 0, None
    store = opened(home)
    while True:
        run_id = f"cut{calls}"
        journal = long_journal(home / "runs", run_id)
        last = Last(calls, arrives)
        store._client, whole = CutClient(store.client, last), store.client
        try:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(points, "insert", last.watched(points.insert))
                Upload(store, journal).complete()
            cut = False
        except Cut:
            cut = True
        store._client = whole
        Upload(opened(home), journal).complete()
        there = comparable(everything(uri, run_id))
        reference = reference or there
        assert there == reference, f"cut at call {calls}"
        if not cut:
            break
        calls += 1
    assert calls > 15


def long_journal(runs: Path, run_id: str) -> Path:
    """A run of two batches of points, all of whose facts but its id are fixed."""
    journal = journals.begin(runs, run_id, started="2026-01-01T00:00:00+00:00")
    for first in (0, 600):
        journals.step(journal, first, 600)
    journal.set(status="failed", ended="2026-01-01T00:01:00+00:00", error={"type": "E", "message": "m"})
    journal.close()
    finish(journal.path)
    return journal.path


def comparable(there: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two runs that did the same: id, note, times of the points."""
    points = {key: [(step, value) for step, value, _ in points] for key, points in there["metrics"].items()}
    tags = {
        key: tag for key, tag in there["tags"].items() if key not in ("dpexp.run_id", "mlflow.note.content")
    }
    return {**there, "metrics": points, "tags": tags, "artifacts": sorted(there["artifacts"])}


def test_a_batch_that_arrives_twice_is_there_once(home: Path, uri: str) -> None:
    """A request that was given up too early may arrive after it was asked for again."""
    journal = journals.complete(home / "runs", "late", steps=200)
    finish(journal)
    store = opened(home)
    Upload(store, journal).complete()
    first = everything(uri, "late")
    blind = Upload(store, journal)
    blind.attach()
    blind._cursor = {}
    while batch := blind._fill():
        assert len(batch) <= store.batch
        blind._send()
    assert everything(uri, "late") == first


def test_a_lost_line_leaves_the_numbers_of_other_steps_alone(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "lost", steps=100)
    content_ = journal.read_bytes()
    journal.write_bytes(content_.replace(b'"steps.time_ms":[1.025', b'"steps.time_ms":[9.025', 1))
    deliver(home, journal)
    assert steps_of(uri, "lost") == [*range(25), *range(50, 100)]
    assert "line 4" in only_run(uri, "lost").data.tags["dpexp.damage"]


def test_a_run_that_was_deleted_in_mlflow_is_delivered_anew_when_asked_for(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "gone")
    deliver(home, journal)
    MlflowClient(uri).delete_run(only_run(uri, "gone").info.run_id)
    deliver(home, journal)
    assert steps_of(uri, "gone") == list(range(100))


def test_two_homes_with_copies_of_a_journal_make_one_run(
    home: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for name in ("a", "b"):
        (tmp_path / name / "runs").mkdir(parents=True)
    original = journals.complete(tmp_path / "a" / "runs", "both")
    shutil.copytree(original.parent, tmp_path / "b" / "runs" / "both")
    copies = [tmp_path / name / "runs" / "both" / JOURNAL for name in ("a", "b")]
    first, second = (Upload(opened(path.parents[2]), path) for path in copies)
    first._found = second._found = lambda: None  # type: ignore[method-assign]
    made = [first.attach(), second.attach()]
    assert len(mlflow_runs(uri, "both")) == 2
    del first._found, second._found
    for upload in (first, second):
        upload.complete()
    assert only_run(uri, "both").info.run_id == min(run for _, run in made)
    assert steps_of(uri, "both") == list(range(100))


def sync_all(home: str) -> list[str]:
    """In a process of its own: what ``runs.py sync`` does; returns the states."""
    path = Path(home)
    return [result.state for result in sync.deliver(path, sync.undelivered(path))]


def test_concurrent_syncs_deliver_each_run_once(home: Path, uri: str) -> None:
    for number in range(4):
        finish(journals.complete(home / "runs", f"many{number}"))
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        states = [state for done in pool.map(sync_all, [str(home)] * 3) for state in done]
    assert set(states) <= {"delivered", "already"}
    assert states.count("delivered") == 4
    for number in range(4):
        assert steps_of(uri, f"many{number}") == list(range(100))
    assert sync.undelivered(home) == []


def test_points_are_delivered_while_the_run_goes_on(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "live")
    upload = Upload(opened(home), journal.path, fresh=True)
    for first in (0, 50):
        journals.step(journal, first, 50)
        upload.advance()
        assert steps_of(uri, "live") == list(range(first + 50))
    assert only_run(uri, "live").info.status == "RUNNING"
    journals.end(journal)
    finish(journal.path)
    assert upload.complete().complete
    assert only_run(uri, "live").info.status == "FINISHED"


def test_a_run_that_is_deleted_in_mlflow_while_it_goes_on_is_delivered_anew_from_its_first_step(
    home: Path, uri: str
) -> None:
    journal = journals.begin(home / "runs", "deleted")
    upload = Upload(opened(home), journal.path, fresh=True)
    journals.step(journal, 0, 50)
    upload.advance()
    MlflowClient(uri).delete_run(only_run(uri, "deleted").info.run_id)
    journals.step(journal, 50, 50)
    with pytest.raises(GoneError):
        upload.advance()
    upload.advance()
    assert steps_of(uri, "deleted") == list(range(100))
    journals.end(journal)
    finish(journal.path)
    assert upload.complete().complete
    assert steps_of(uri, "deleted") == list(range(100))


def test_a_figure_that_fails_is_reported_and_does_not_hold_up_the_run(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "bent")
    journals.step(journal, 0, 10)
    journal.set(timeline=[{"step": 0, "phase": "step", "start_us": 0, "end_us": "late"}])
    finish(journals.end(journal))
    delivery = Upload(opened(home), journal.path).complete()
    assert delivery.complete
    assert "without its figures (TypeError" in delivery.message
    assert only_run(uri, "bent").info.status == "FINISHED"
    assert steps_of(uri, "bent") == list(range(10))
    assert "no summary" in fold(journal.path).damage[0]


def test_an_interrupted_tail_reads_each_line_once(home: Path) -> None:
    journal = Journal(home / "runs", "tail")
    tail = JournalReader(journal.path)
    seen = []
    for number in range(5):
        journal.extend({"steps.loss": [float(number)]})
        journal.flush()
        seen += [entry["extend"]["steps.loss"] for entry in tail]
    journal.close()
    assert seen == [[0.0], [1.0], [2.0], [3.0], [4.0]]
