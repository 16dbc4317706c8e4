"""Delivery to an SQLite store: every fact arrives, every point once, wherever earlier deliveries were cut."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import journals
import pytest
import record_factory
from command_lines import shared, wait
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow_reader import artifact_folder, everything, expected_metrics, history, mlflow_runs, only_run
from store_faults import Death, dying

from dpexp import report
from dpexp.config.run_config import RunConfig
from dpexp.record.figures import At, figures
from dpexp.record.journal import JOURNAL, Journal, JournalReader
from dpexp.record.record import Record, finish, fold
from dpexp.record.runs import import_journal
from dpexp.record.view import RecordView
from dpexp.tracking.content import content, tables, view
from dpexp.tracking.content.points import JournalPoints
from dpexp.tracking.delivery import ledger, sync, upload
from dpexp.tracking.delivery.upload import Upload
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def home(home_with_store: Path) -> Path:
    return home_with_store


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


def opened(home: Path) -> Store:
    store = Store.from_environment(home)
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


def test_a_run_arrives_complete(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "complete")
    deliver(home, journal)
    found, record = everything(uri, "complete"), fold(journal)
    assert found["experiment"] == "dpexp"
    assert (found["name"], found["status"]) == (record.name, "FINISHED")
    assert found["times"] == (content.to_epoch_ms(record.started), content.to_epoch_ms(record.ended))
    assert found["params"]["batch_size"] == "30"
    assert found["params"]["strategy"] == "whole"
    assert [value for _, value, _ in found["metrics"]["loss"]] == record.steps["loss"]
    assert [value for _, value, _ in found["metrics"]["time_ms/step"]] == record.steps["time_ms"]
    assert [step for step, _, _ in found["metrics"]["time_ms/forward"]] == [0, 1, 2]
    assert [value for _, value, _ in found["metrics"]["accuracy"]] == [0.5, 0.75]
    (median,) = found["metrics"]["step_ms"]
    assert median[1] == pytest.approx(record.summary["step_ms"]["median"], rel=1e-3)
    assert found["tags"]["dpexp.run_id"] == "complete"
    assert found["tags"]["dpexp.verified"] == "True"
    assert found["tags"]["git.dirty"] == "True"
    assert found["tags"]["mlflow.source.git.commit"] == "0123abcd"
    assert "whole" in found["tags"]["mlflow.note.content"]
    assert found["datasets"] == [("random", ("ab" * 32)[:36])]
    assert json.loads(found["artifacts"]["record.json"]) == record.to_dict()
    figures = {"timeline.html", "phases.png", "trace.json"}
    assert figures | {"shapes.json", "device_map.json"} <= set(found["artifacts"])


def test_a_run_is_found_at_a_whole_address_with_and_without_a_server(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, page = Store.from_environment(home).where("1", "ab").partition(" shows it at ")
    run = "#/experiments/1/runs/ab?workflowType=machine_learning"
    assert (command, page) == ("python scripts/ui.py", f"http://127.0.0.1:5000/{run}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:8080/")
    assert Store.from_environment(home).where("1", "ab") == f"https://host:8080/{run}"


def test_what_mlflow_has_is_what_is_expected_of_the_record(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "expected")
    journals.step(journal, 0, 30)
    journal.extend({"steps.loss": [math.inf], "steps.time_ms": [1.0], "metrics.accuracy": [None, 0.5]})
    journals.phases(journal)
    deliver(home, journals.end(journal))
    found = everything(uri, "expected")["metrics"]
    stored = {key: {step: value for step, value, _ in rows} for key, rows in found.items()}
    expected = expected_metrics(fold(journal.path))
    assert stored == expected
    assert expected["accuracy"] == {1: 0.5, 2: 0.5, 3: 0.75}


def test_the_list_of_runs_has_columns_for_what_runs_are_compared_by(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "columns")
    journals.observe(journal)
    journals.step(journal, 0, 30)
    journal.set(memory={"cpu": 250_000_000, "cuda:0": 1_500_000_000})
    deliver(home, journals.end(journal))
    found = only_run(uri, "columns")
    metrics = found.data.metrics
    figures = RecordView(fold(journal.path))
    assert (metrics["peak_MB"], metrics["max_error"]) == (1500, 3e-16)
    assert metrics["bytes_moved"] == sum(figures.bytes_moved.values())
    written = MlflowClient(uri).get_experiment(found.info.experiment_id).tags[view.VIEW_TAG]
    shown = [column.split("`")[1].removeprefix("dpexp.") for column in json.loads(written)["selectedColumns"]]
    assert shown[:5] == ["strategy", "verified", "step_ms", "speed_up", "samples_per_s"]
    assert {"bytes_moved", "peak_MB", "max_error"} <= set(shown) & set(metrics)


def test_a_run_has_few_metrics_beside_its_series_and_they_are_rounded() -> None:
    most = record_factory.whole(8, phases={f"phase {number}": 0.123456789 for number in range(12)})
    for record in (most, record_factory.hybrid(), record_factory.whole(1)):
        single = content.summary_metrics(record)
        assert {"step_ms", "samples_per_s", "peak_MB"} <= single.keys()
        assert all(len(f"{value:.12g}".strip("0").replace(".", "")) <= 6 for value in single.values())
    assert len(figures(At.METRIC | At.COLUMN)) + content.MOST_PHASES <= content.MOST_SINGLE


def test_params_are_what_runs_differ_by() -> None:
    config = RunConfig("hybrid", virtual=2, run_name="mine", options={"sparse": True}).to_dict()
    shown = content.params(Record(strategy="hybrid", config=config))
    assert (shown["strategy"], shown["sparse"], shown["batch_size"]) == ("hybrid", "True", "30")
    assert not {"comm", "comm_timeout", "run_name", "experiment", "track"} & shown.keys()


@pytest.mark.parametrize("first", ["sweep", "run"])
def test_a_sweeps_runs_get_their_speed_ups_whichever_is_delivered_first(
    home: Path, uri: str, first: str
) -> None:
    sweep = journals.begin(home / "runs", "parent", strategy="sweep")
    sweep.set({"summary.speed_ups": [{"run": "child", "speed_up": 1.5}, {"run": "../gone", "speed_up": 2.0}]})
    run = journals.begin(home / "runs", "child", parent="parent")
    for journal in (sweep, run) if first == "sweep" else (run, sweep):
        deliver(home, journals.end(journal))
    assert only_run(uri, "child").data.metrics["speed_up"] == 1.5
    deliver(home, run.path)
    assert [value for _, value, _ in everything(uri, "child")["metrics"]["speed_up"]] == [1.5]


def test_shapes_show_module_inputs_and_outputs_first() -> None:
    row = {"batch": 0, "scope": "outside", "module": "fc", "replica": None, "device": "cpu"}
    columns = json.loads(tables.table([row | {"inputs": [[2]], "outputs": [[1]]}]))["columns"]
    assert columns[:3] == ["module", "inputs", "outputs"]
    assert set(columns) == {*row, "inputs", "outputs"}


def test_tables_are_those_of_log_table(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "tables")
    deliver(home, journal)
    client, run = MlflowClient(uri), only_run(uri, "tables")
    ours = json.loads(tables.table(fold(journal).device_map))
    client.log_table(
        run.info.run_id,
        {c: [row[i] for row in ours["data"]] for i, c in enumerate(ours["columns"])},
        "theirs.json",
    )
    theirs = everything(uri, "tables")["artifacts"]["theirs.json"]
    assert ours == json.loads(theirs)


def test_a_table_of_very_many_rows_is_cut_and_a_tag_says_so() -> None:
    rows = [{"batch": 0, "module": str(number)} for number in range(tables.MAX_ROWS + 1)]
    record = Record(shapes=rows, device_map=rows[:-1])
    lengths = {name: len(json.loads(text)["data"]) for name, text in tables.record_tables(record).items()}
    assert lengths == dict.fromkeys(("shapes.json", "device_map.json"), tables.MAX_ROWS)
    cut = "shapes.json: the first 10000 of 10001 rows, all in record.json"
    assert content.tags(record)["dpexp.tables"] == cut
    assert "dpexp.tables" not in content.tags(Record(shapes=rows[:-1]))


def test_long_values_are_complete_in_an_artifact_that_the_short_ones_name(home: Path, uri: str) -> None:
    config = {"model": "m" * 7000, "odd key!": 1}
    journal = journals.complete(home / "runs", "long", config=config, environment={"host": "h" * 9000})
    deliver(home, journal)
    found = everything(uri, "long")
    assert found["params"]["model"].endswith("… (full text in long_values.json)")
    assert len(found["params"]["model"]) == content.MAX_PARAM
    assert len(found["tags"]["host"]) == content.MAX_TAG
    long_values = json.loads(found["artifacts"]["long_values.json"])
    assert long_values == {"params": {"model": "m" * 7000, "odd key!": "1"}, "tags": {"host": "h" * 9000}}
    assert deliver(home, journal) == "delivered"


def test_inf_and_nan_arrive_with_a_tag(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "odd")
    journal.extend({"steps.loss": [1.0, math.inf, math.nan], "steps.time_ms": [1.0, 1.0, 1.0]})
    deliver(home, journals.end(journal))
    deliver(home, journal.path)
    found = everything(uri, "odd")
    largest = 1.7976931348623157e308
    assert [value for _, value, _ in found["metrics"]["loss"]] == [1.0, largest, "nan"]
    assert json.loads(found["tags"]["dpexp.nonfinite"]) == {"loss": {"nan": 1, "inf": 1, "first": 1}}
    assert json.loads(found["artifacts"]["record.json"])["steps"]["loss"] == [1.0, "inf", "nan"]


def test_a_failed_run_has_its_error_as_a_tag(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "failed")
    error = {"type": "ValueError", "message": "too wide", "traceback": "Traceback (most recent call last)"}
    deliver(home, journals.end(journal, "failed", error))
    found = everything(uri, "failed")
    assert found["status"] == "FAILED"
    assert found["tags"]["dpexp.error"] == "ValueError: too wide"
    assert "Traceback" in json.loads(found["artifacts"]["record.json"])["error"]["traceback"]


def test_a_sweep_is_the_parent_of_its_runs_even_if_they_are_delivered_first(home: Path, uri: str) -> None:
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
    found = everything(uri, "markup")
    assert found["name"] == name
    assert name.encode() not in found["artifacts"]["timeline.html"]
    assert name not in found["tags"]["mlflow.note.content"]


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        " ",
        "a/../../b",
        "/etc",
        "x" * 300,
        "x" * 5000,
        "💥" * 250,
        "a\nb",
        "a\0b",
        "\x1b[31m",
        "\ud800",
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_a_foreign_name_is_fitted_to_what_the_store_and_the_disk_hold(
    home: Path, uri: str, name: str, tmp_path: Path
) -> None:
    facts = {"experiment": name, "name": name, "parent": name, "error": {"type": name, "message": name}}
    config = {"strategy": name, "../model": name, "a//b": "\0", "k" * 300: "v" * 7000}
    journal = journals.complete(
        tmp_path / "runs",
        "foreign",
        config=config,
        environment={"user": name, "argv": [name]},
        data={"name": name, "samples": 1},
        **facts,
    )
    before = {path.name for path in home.iterdir()} | {"runs", "mlruns"}
    (result,) = sync.deliver(home, [import_journal(journal, home / "runs")])
    assert (result.state, result.message.count("without")) == ("delivered", 0), result.message
    run = only_run(uri, "foreign")
    assert run.info.status == "FINISHED"
    artifacts = artifact_folder(run)
    assert artifacts.resolve().is_relative_to(home / "mlruns")
    assert (artifacts / "record.json").is_file()
    assert artifacts.parent.parent.parent == home / "mlruns"
    assert all(path.name.startswith("mlflow.db") for path in home.iterdir() if path.name not in before)
    long_values = json.loads((artifacts / "long_values.json").read_text())
    assert long_values["params"]["k" * 300] == "v" * 7000


def test_a_run_that_names_itself_as_parent_is_delivered(home: Path, uri: str) -> None:
    deliver(home, journals.complete(home / "runs", "loop", parent="loop"))
    assert "mlflow.parentRunId" not in only_run(uri, "loop").data.tags


def test_lists_that_a_line_sets_are_metrics_by_step(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs", "lists")
    journal.set(phases={"forward": [1.0, 2.0]}, config={"block": ["a"]}, shapes=[{}])
    journal.close()
    points = JournalPoints(journal.path)
    points.read()
    assert [(p.key, p.value, p.step) for p in points.next(9)] == [
        ("time_ms/forward", 1.0, 0),
        ("time_ms/forward", 2.0, 1),
    ]


def test_a_journal_of_before_that_was_cut_has_its_last_points(tmp_path: Path) -> None:
    """Earlier versions cut a journal where a run resumed."""
    lines = [
        {"set": {"run_id": "old"}},
        {"extend": {"steps.loss": [1.0, 2.0, 3.0]}},
        {"cut": {"steps.loss": 2}},
    ]
    path = tmp_path / JOURNAL
    path.write_text("".join(json.dumps({"at": 1} | line) + "\n" for line in [*lines, lines[1]]))
    points = JournalPoints(path)
    points.read()
    assert [(p.value, p.step) for p in points.next(9)] == list(zip([1, 2, 1, 2, 3], range(5), strict=True))
    assert [p.value for p in points.next(9)] == fold(path).steps["loss"]


# --- once ----------------------------------------------------------------------------------------


def test_a_second_delivery_changes_nothing(home: Path, uri: str) -> None:
    journal = journals.complete(home / "runs", "again")
    deliver(home, journal)
    first = everything(uri, "again")
    deliver(home, journal)
    (journal.parent / ledger.LEDGER).unlink()
    deliver(home, journal)
    assert everything(uri, "again") == first


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "arrived"])
def test_a_delivery_cut_at_any_call_is_completed_once(
    home: Path, uri: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at its first call to the store, at its second, …; then another process delivers."""
    monkeypatch.setattr(upload, "BATCH", 150)
    calls, expected, died = 0, None, True
    while died:
        run_id = f"cut{calls}"
        journal = two_batches(home / "runs", run_id)
        store = opened(home)
        try:
            with dying(store, calls, arrives):
                Upload(store, journal).complete()
            died = False
        except Death:
            calls += 1
        Upload(opened(home), journal).complete()
        delivered = comparable(everything(uri, run_id))
        expected = expected or delivered
        assert delivered == expected, f"cut at call {calls}"
    assert calls > 15


def two_batches(runs: Path, run_id: str) -> Path:
    """The journal of a run with two batches of 150 points; everything but its id is fixed."""
    journal = journals.begin(runs, run_id, started="2026-01-01T00:00:00+00:00")
    for first in (0, 60):
        journals.step(journal, first, 60)
    journal.set(status="failed", ended="2026-01-01T00:01:00+00:00", error={"type": "E", "message": "m"})
    journal.close()
    finish(journal.path)
    return journal.path


def comparable(delivered: dict[str, Any]) -> dict[str, Any]:
    """What two runs that did the same have in common: all but id, note and timestamps."""
    points = {key: [(step, value) for step, value, _ in rows] for key, rows in delivered["metrics"].items()}
    tags = {
        key: value
        for key, value in delivered["tags"].items()
        if key not in ("dpexp.run_id", "mlflow.note.content")
    }
    return {**delivered, "metrics": points, "tags": tags, "artifacts": sorted(delivered["artifacts"])}


def test_a_ledger_that_cannot_be_written_makes_no_second_run(
    home: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.complete(home / "runs", "full")
    finish(journal)
    live = Upload(opened(home), journal)

    def failing(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(ledger, "write_entry", failing)
        with pytest.raises(OSError, match="No space left"):
            live.advance()
    assert live.complete().complete
    assert steps_of(uri, "full") == list(range(100))


def test_a_batch_that_arrives_twice_is_there_once(home: Path, uri: str) -> None:
    """A request that was given up too early may arrive after its repetition."""
    journal = journals.complete(home / "runs", "late", steps=200)
    finish(journal)
    store = opened(home)
    Upload(store, journal).complete()
    first = everything(uri, "late")
    repeated = Upload(store, journal)
    repeated.advance()
    assert everything(uri, "late") == first


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
    first._search = second._search = lambda experiment: None  # type: ignore[method-assign]
    for each in (first, second):
        each.advance()
    created = [first.attach().run_id, second.attach().run_id]
    assert len(mlflow_runs(uri, "both")) == 2
    del first._search, second._search
    for each in (first, second):
        each.complete()
    assert only_run(uri, "both").info.run_id == min(created)
    assert steps_of(uri, "both") == list(range(100))


SYNC_ALL = """
import sys
from pathlib import Path
from dpexp.tracking.delivery import sync
home = Path(sys.argv[1])
print(*[result.state for result in sync.deliver(home, sync.undelivered(home))])
"""
"""What ``runs.py sync`` does; prints the states."""


def test_concurrent_syncs_deliver_each_run_once(home: Path, uri: str) -> None:
    for number in range(4):
        finish(journals.complete(home / "runs", f"many{number}"))
    processes = [shared().start("-c", SYNC_ALL, str(home)) for _ in range(3)]
    states = [state for process in processes for state in wait(process)[0].split()]
    assert [process.returncode for process in processes] == [0] * 3
    assert set(states) <= {"delivered", "already"}
    assert states.count("delivered") == 4
    for number in range(4):
        assert steps_of(uri, f"many{number}") == list(range(100))
    assert sync.undelivered(home) == []


def test_a_run_that_another_process_delivers_is_not_delivered_twice(
    home: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.complete(home / "runs", "one")
    finish(journal)
    monkeypatch.setattr(sync, "DELIVERY_LOCK_TIMEOUT_S", 0.1)
    with ledger.delivery_lock(journal.parent, 1):
        (result,) = sync.deliver(home, [journal.parent])
    assert (result.state, result.is_well) == ("not delivered", False)
    assert result.message == "another process is delivering run one"
    assert not mlflow_runs(uri, "one")
    assert [each.state for each in sync.deliver(home, [journal.parent])] == ["delivered"]


def test_points_are_delivered_during_the_run(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "live")
    live = Upload(opened(home), journal.path)
    live.advance()
    assert only_run(uri, "live").data.metrics == {}
    for first in (0, 50):
        journals.step(journal, first, 50)
        live.advance()
        assert steps_of(uri, "live") == list(range(first + 50))
    assert only_run(uri, "live").info.status == "RUNNING"
    journals.end(journal)
    finish(journal.path)
    assert live.complete().complete
    assert only_run(uri, "live").info.status == "FINISHED"


def test_a_run_that_is_deleted_in_mlflow_during_the_run_is_delivered_again_from_its_first_step(
    home: Path, uri: str
) -> None:
    journal = journals.begin(home / "runs", "deleted")
    live = Upload(opened(home), journal.path)
    journals.step(journal, 0, 50)
    live.advance()
    MlflowClient(uri).delete_run(only_run(uri, "deleted").info.run_id)
    journals.step(journal, 50, 50)
    with pytest.raises(MlflowException, match="deleted"):
        live.advance()
    live.advance()
    assert steps_of(uri, "deleted") == list(range(100))
    journals.end(journal)
    finish(journal.path)
    assert live.complete().complete
    assert steps_of(uri, "deleted") == list(range(100))


def test_a_figure_that_fails_is_reported_and_the_run_is_delivered(
    home: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(view: RecordView, folder: Path) -> bool:
        raise ValueError("bent")

    monkeypatch.setattr(report, "write_files", failing)
    journal = journals.complete(home / "runs", "bent")
    finish(journal)
    delivery = Upload(opened(home), journal).complete()
    assert delivery.complete
    assert "without its figures (ValueError: bent)" in delivery.message
    assert only_run(uri, "bent").info.status == "FINISHED"


def test_an_interrupted_tail_reads_each_line_once(home: Path) -> None:
    journal = Journal(home / "runs", "tail")
    reader = JournalReader(journal.path)
    read = []
    for number in range(5):
        journal.extend({"steps.loss": [float(number)]})
        journal.flush()
        read += [entry["extend"]["steps.loss"] for entry in reader]
    journal.close()
    assert read == [[0.0], [1.0], [2.0], [3.0], [4.0]]
