"""``runs.py check --store``: what the store lost or changed is found, by counts and values, and repaired."""

import contextlib
import json
import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import journals
import mlflow
import pytest
from command_lines import script
from mlflow.tracking import MlflowClient
from mlflow_reader import artifact_folder, everything, only_run

from dpexp.config.run_config import config_digest
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL, Journal, encode_line
from dpexp.record.journal.seal import seal, unseal
from dpexp.record.profiler_trace import PROFILER_TRACE, write_trace
from dpexp.tracking.content import content
from dpexp.tracking.delivery import ledger, repair, stored, sync
from dpexp.tracking.delivery.check import AGAIN, NEW_RUN
from dpexp.tracking.delivery.mlflow_run import MlflowRun
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store.sqlite_file import SqliteFile
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def uri(home: Path) -> str:
    return f"sqlite:///{home / 'mlflow.db'}"


def delivered(home: Path, run_id: str) -> Path:
    """A delivered run with steps, system metrics and tables; without what is slow to draw."""
    journal = journals.begin(home / "runs", run_id)
    shape = {"batch": 0, "scope": "outside", "module": "", "replica": None, "device": "cpu:0"}
    journal.set(shapes=[shape | {"inputs": [[30, 5]], "outputs": [[30, 2]]}])
    for first in range(0, 40, 10):
        journals.step(journal, first, 10)
    system = {"extend": {"system.cpu": [0.5]}, "from": {"system.cpu": 0}}
    (journal.folder / "system.jsonl").write_bytes(encode_line({"seq": 0, "at": 1000, **system}))
    finish(journals.end(journal))
    (result,) = sync.deliver(home, [journal.folder])
    assert result.state == "delivered", result.message
    return journal.folder


def changed(home: Path, run_id: str, statement: str) -> None:
    """Change the store by hand: ``?`` is the MLflow run."""
    mlflow_run = only_run(f"sqlite:///{home / 'mlflow.db'}", run_id).info.run_id
    connection = sqlite3.connect(home / "mlflow.db")
    with connection:
        assert connection.execute(statement, (mlflow_run,)).rowcount > 0
    connection.close()


def checked(home: Path, folder: Path) -> list[tuple[str, str]]:
    return [(problem.kind, problem.repair) for problem in repair.run_problems(home, folder, with_store=True)]


def test_what_a_delivery_wrote_has_no_problem(home: Path) -> None:
    assert checked(home, delivered(home, "whole")) == []
    assert sync.lost(home) == []


def test_a_profilers_trace_is_delivered_and_a_missing_or_cut_one_again(home: Path, uri: str) -> None:
    journal, trace = journals.begin(home / "runs", "profiled"), b'{"traceEvents":[]}'
    journal.set({"work.operators": {"trace": write_trace(journal.folder, trace)}})
    finish(journals.end(journal))
    (result,) = sync.deliver(home, [journal.folder])
    assert result.state == "delivered", result.message
    artifact = artifact_folder(only_run(uri, "profiled")) / PROFILER_TRACE
    assert artifact.read_bytes() == trace
    for damage in (b"{", None):
        artifact.unlink()
        if damage is not None:
            artifact.write_bytes(damage)
        found = repair.run_problems(home, journal.folder, with_store=True)
        assert [(each.kind, each.repair, PROFILER_TRACE in each.what) for each in found] == [
            ("facts", AGAIN, True)
        ]
        repair.repair(home, journal.folder, found)
        assert artifact.read_bytes() == trace


@pytest.mark.parametrize("damage", ["lost", "doubled", "exchanged", "headless"])
def test_a_damaged_journal_is_delivered_as_its_fold(home: Path, uri: str, damage: str) -> None:
    journal = journals.begin(home / "runs", damage)
    for first in range(0, 40, 10):
        journals.step(journal, first, 10)
    journals.end(journal)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    damaged = {
        "lost": lines[:2] + lines[3:],
        "doubled": lines * 2,
        "exchanged": [lines[0], lines[2], lines[1], *lines[3:]],
        "headless": lines[1:],
    }
    journal.path.write_bytes(b"".join(damaged[damage]))
    finish(journal.path)
    is_headless = damage == "headless"  # nothing says that it was tracked
    (result,) = sync.deliver(home, [journal.folder], named=is_headless)
    assert result.state == "delivered", result.message
    assert {kind for kind, _ in checked(home, journal.folder)} == {"journal"}
    data = only_run(uri, damage).data
    assert data.tags["dpexp.damage"]
    assert data.metrics.get("missing_steps", 0) == (10 if damage == "lost" else 0)


@pytest.mark.parametrize("damage", ["end", "line", "byte"])
def test_what_a_journal_loses_after_delivery_stays_in_the_store(home: Path, uri: str, damage: str) -> None:
    run_id = f"{damage}-after"
    folder = delivered(home, run_id)
    before, journal = everything(uri, run_id), folder / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    other = lines[3].replace(b"time_ms", b"time_mS")
    left = {"end": lines[:3], "line": lines[:3] + lines[4:], "byte": [*lines[:3], other, *lines[4:]]}
    journal.write_bytes(b"".join(left[damage]))
    for _ in range(2):
        list(sync.deliver(home, [folder], again=True, new_run=True))
        repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
        assert {problem.kind for problem in repair.run_problems(home, folder, with_store=True)} == {
            "journal",
            "ledger",
        }
        assert everything(uri, run_id) == before
    changed(home, run_id, "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?")
    repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
    assert only_run(uri, run_id).data.tags["dpexp.damage"]


def test_a_byte_that_flips_before_a_late_delivery_is_named_in_the_store(home: Path, uri: str) -> None:
    path = journals.complete(home / "runs", "late")
    finish(path)
    path.write_bytes(path.read_bytes().replace(b"steps.time_ms", b"steps.time_mS", 1))
    list(sync.deliver(home, [path.parent]))
    assert only_run(uri, "late").data.tags["dpexp.damage"]
    assert {kind for kind, _ in checked(home, path.parent)} == {"journal"}


@pytest.mark.parametrize("changes", [{}, {"virtual": 4}], ids=["alike", "on other devices"])
def test_a_resumed_run_is_in_the_store_as_its_record_says(
    home: Path, uri: str, changes: dict[str, int]
) -> None:
    run_id = f"again-{len(changes)}"
    config = {"strategy": "whole", "virtual": 2, "snapshot_every": 10, "resume": None}
    journal = journals.begin(home / "runs", run_id, config=config)
    journals.step(journal, 0, 20)
    finish(journals.end(journal, "killed"))
    list(sync.deliver(home, [journal.folder]))
    before = only_run(uri, run_id).info.run_id
    with Journal.reopen(journal.folder) as again:
        config |= {**changes, "resume": run_id}
        devices = [f"cpu:{index}" for index in range(config["virtual"])]
        again.set(
            config=config,
            config_digest=config_digest(config),
            devices={"requested": devices, "used": devices, "output": "cpu:0"},
        )
        journals.step(again, 20, 20)
        journals.end(again)
    finish(journal.path)
    list(sync.deliver(home, [journal.folder]))
    assert checked(home, journal.folder) == []
    assert only_run(uri, run_id).data.params["virtual"] == str(4 if changes else 2)
    assert (only_run(uri, run_id).info.run_id == before) is not bool(changes)


@pytest.mark.parametrize("name", ["record.json", "delivery.json"])
def test_the_store_stays_as_it_is_where_a_derived_file_has_no_seal(home: Path, uri: str, name: str) -> None:
    run_id = f"unsealed-{name[:-5]}"
    folder = delivered(home, run_id)
    before, mlflow_run = everything(uri, run_id), only_run(uri, run_id).info.run_id
    (folder / name).write_text("{}")
    assert checked(home, folder)
    repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
    assert checked(home, folder) == []
    assert everything(uri, run_id) == before
    assert only_run(uri, run_id).info.run_id == mlflow_run


@pytest.mark.parametrize("version", ["now", "earlier"])
def test_ledgers_of_two_runs_that_were_exchanged_are_found_and_repaired(
    home: Path, uri: str, version: str
) -> None:
    folders = [delivered(home, f"exchanged-{version}-{n}") for n in range(2)]
    before = [(everything(uri, each.name), only_run(uri, each.name).info.run_id) for each in folders]
    exchanged = [(folder / ledger.LEDGER).read_bytes() for folder in reversed(folders)]
    for folder, ledger_file in zip(folders, exchanged, strict=True):
        data, source = unseal(ledger_file)
        if version == "earlier":  # which did not name the run in the seal
            del source["run"]
        (folder / ledger.LEDGER).write_bytes(seal(json.dumps(data), source))
    for folder in folders:
        assert {kind for kind, _ in checked(home, folder)} == {"ledger", "missing"}
    for folder in folders:
        repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
        assert checked(home, folder) == []
    assert [(everything(uri, each.name), only_run(uri, each.name).info.run_id) for each in folders] == before


def test_a_resumed_run_that_was_delivered_before_has_no_problem(home: Path) -> None:
    journal = journals.begin(home / "runs", "resumed")
    journals.step(journal, 0, 20)
    journals.end(journal, "killed")
    list(sync.deliver(home, [journal.folder]))
    with Journal.reopen(journal.folder) as again:
        again.truncate({"steps.time_ms": 10, "steps.loss": 10, "steps.samples": 10})
        journals.step(again, 10, 30)
        journals.end(again)
    finish(journal.path)
    assert [kind for kind, _ in checked(home, journal.folder)] == ["ledger", "missing"]
    list(sync.deliver(home, [journal.folder]))
    assert checked(home, journal.folder) == []


@pytest.mark.parametrize(
    ("run_id", "statement", "found"),
    [
        (
            "value",
            "UPDATE metrics SET value = 9 WHERE key = 'loss' AND step = 17 AND run_uuid = ?",
            "values",
        ),
        (
            "point",
            "DELETE FROM metrics WHERE key = 'time_ms/step' AND step = 3 AND run_uuid = ?",
            "values",
        ),
        ("system", "DELETE FROM metrics WHERE key LIKE 'system/%' AND run_uuid = ?", "values"),
        ("param", "UPDATE params SET value = '31' WHERE key = 'batch_size' AND run_uuid = ?", "values"),
        ("tag", "DELETE FROM tags WHERE key = 'dpexp.strategy' AND run_uuid = ?", "facts"),
        ("status", "UPDATE runs SET status = 'RUNNING' WHERE run_uuid = ?", "facts"),
        ("gone", "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", "missing"),
    ],
)
def test_what_differs_in_the_store_is_found_and_repaired(
    home: Path, uri: str, run_id: str, statement: str, found: str
) -> None:
    folder = delivered(home, run_id)
    before = everything(uri, run_id)
    changed(home, run_id, statement)
    assert checked(home, folder) == [(found, NEW_RUN if found == "values" else AGAIN)]
    repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
    assert checked(home, folder) == []
    assert everything(uri, run_id) == before


def test_a_missing_artifact_is_found_and_repaired(home: Path, uri: str) -> None:
    folder = delivered(home, "artifact")
    (artifact_folder(only_run(uri, "artifact")) / "shapes.json").unlink()
    assert checked(home, folder) == [("facts", AGAIN)]
    repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
    assert checked(home, folder) == []


A_TRACE = "(SELECT max(trace_id) FROM spans WHERE type = 'TASK')"


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        (f"DELETE FROM trace_info WHERE request_id = {A_TRACE}", True),
        (f"DELETE FROM spans WHERE trace_id = {A_TRACE} AND type = 'TASK'", False),
    ],
    ids=["a trace", "spans"],
)
def test_traces_that_were_stored_in_part_are_stored_again(
    home_with_store: Path, statement: str, is_found: bool
) -> None:
    """A delivery that is killed may leave one of two traces, or one without its spans."""
    folder, home = journals.complete(home_with_store / "runs").parent, home_with_store
    uri = f"sqlite:///{home / 'mlflow.db'}"
    finish(folder / JOURNAL)
    assert [each.state for each in sync.deliver(home, [folder])] == ["delivered"]
    assert checked(home, folder) == []
    before = span_counts(uri, folder.name)
    add_trace_by_hand(uri, folder.name)
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        assert connection.execute(statement).rowcount > 0
    assert checked(home, folder) == ([("facts", AGAIN)] if is_found else [])
    assert [each.state for each in sync.deliver(home, [folder], again=True)] == ["delivered"]
    assert checked(home, folder) == []
    assert span_counts(uri, folder.name) == sorted([1, *before])


def span_counts(uri: str, run_id: str) -> list[int]:
    run = only_run(uri, run_id).info
    found = MlflowClient(uri).search_traces(locations=[run.experiment_id], run_id=run.run_id)
    return sorted(len(trace.data.spans) for trace in found)


def add_trace_by_hand(uri: str, run_id: str) -> None:
    """A trace of the user's own, with one span."""
    run = only_run(uri, run_id).info
    mlflow.set_tracking_uri(uri)
    span = mlflow.start_span_no_context(
        "step by step", metadata={"mlflow.sourceRun": run.run_id}, experiment_id=run.experiment_id
    )
    span.end()
    mlflow.flush_trace_async_logging()


def add_by_hand(uri: str, run_id: str) -> None:
    """What a user adds to a delivered run in MLflow."""
    client, mlflow_run = MlflowClient(uri), only_run(uri, run_id).info.run_id
    for step, value in enumerate([0.5, 0.75]):
        client.log_metric(mlflow_run, "eval/accuracy", value, timestamp=step, step=step)
    client.log_metric(mlflow_run, "scores/mine", 7.0)
    client.set_tag(mlflow_run, "team", "vision")
    client.log_param(mlflow_run, "annotated", "yes")


def test_what_users_add_in_mlflow_is_no_problem_and_stays_at_a_repair(home: Path, uri: str) -> None:
    folder = delivered(home, "added")
    add_by_hand(uri, "added")
    assert checked(home, folder) == []
    list(sync.deliver(home, [folder], again=True))
    (folder / "system.jsonl").unlink()
    before, mlflow_run = everything(uri, "added"), only_run(uri, "added").info.run_id
    for _ in range(2):  # the second repair replaces a run that has replaced one
        changed(
            home,
            "added",
            "UPDATE metrics SET value = 9 WHERE key = 'loss' AND step = 17 AND run_uuid = ?",
        )
        assert checked(home, folder) == [("values", NEW_RUN), ("system", "")]
        repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
        assert only_run(uri, "added").info.run_id != mlflow_run
        assert everything(uri, "added") == before
        assert checked(home, folder) == [("system", "")]


def test_what_users_add_in_mlflow_stays_at_a_restart(home: Path, uri: str) -> None:
    journal = journals.begin(home / "runs", "restarted", config={"batch_size": 30, "snapshot_every": 5})
    journals.step(journal, 0, 20)
    journals.end(journal, "killed")
    list(sync.deliver(home, [journal.folder]))
    add_by_hand(uri, "restarted")
    before = only_run(uri, "restarted")
    with Journal.reopen(journal.folder) as again:
        again.truncate({"steps.time_ms": 10, "steps.loss": 10, "steps.samples": 10})
        journals.step(again, 10, 8)
        journals.end(again)
    finish(journal.path)
    list(sync.deliver(home, [journal.folder]))
    after = only_run(uri, "restarted")
    assert after.info.run_id != before.info.run_id
    assert (after.data.tags["team"], after.data.params["annotated"]) == ("vision", "yes")
    assert (after.data.metrics["eval/accuracy"], after.data.metrics["scores/mine"]) == (0.75, 7.0)
    assert checked(home, journal.folder) == []


@pytest.mark.parametrize("damage", ["missing", "flipped", "emptied"])
def test_samples_that_only_mlflow_has_are_reported_and_stay(home: Path, uri: str, damage: str) -> None:
    folder = delivered(home, damage)
    before = everything(uri, folder.name)
    path = folder / "system.jsonl"
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    else:
        path.write_bytes(b"")
    assert checked(home, folder) == [("system", "")]
    repair.repair(home, folder, repair.run_problems(home, folder, with_store=True))
    assert everything(uri, folder.name) == before


def test_every_flipped_byte_of_a_ledger_is_found(home: Path) -> None:
    folder = delivered(home, "ledger")
    path = folder / ledger.LEDGER
    whole = path.read_bytes()
    for place in random.Random(13).sample(range(len(whole)), 60):
        content = bytearray(whole)
        content[place] ^= 1 << (place % 7)
        path.write_bytes(content)
        found = repair.run_problems(home, folder, with_store=False)
        assert [problem.kind for problem in found] == ["ledger"], place
        assert ledger.read_ledger(folder) == {}
    repair.repair(home, folder, found)
    assert checked(home, folder) == []


def test_a_run_delivered_before_a_summary_had_a_figure_is_stored(
    home: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = delivered(home, "before")
    write, new = content.summary_metrics, {"figure_of_later": 3.0}
    monkeypatch.setattr(content, "SINGLE", (*content.SINGLE, *new))
    monkeypatch.setattr(content, "summary_metrics", lambda record: write(record) | new)
    assert folder not in sync.lost(home)
    assert checked(home, folder) == []
    list(sync.deliver(home, [folder], again=True))
    assert only_run(uri, "before").data.metrics["figure_of_later"] == 3
    changed(home, "before", "UPDATE metrics SET value = 9 WHERE key = 'figure_of_later' AND run_uuid = ?")
    changed(
        home,
        "before",
        "UPDATE latest_metrics SET value = 9 WHERE key = 'figure_of_later' AND run_uuid = ?",
    )
    assert folder in sync.lost(home)


def as_version_1(home: Path, run_id: str) -> None:
    """Make a delivered run one of the version of the content that had other names for metrics."""
    record = load(home / "runs" / run_id)
    changed(home, run_id, f"DELETE FROM tags WHERE key = '{content.VERSION_TAG}' AND run_uuid = ?")
    for table in ("metrics", "latest_metrics"):
        keys = ", ".join(f"'{key}'" for key in content.summary_metrics(record))
        changed(home, run_id, f"DELETE FROM {table} WHERE key IN ({keys}) AND run_uuid = ?")
    client, mlflow_run = (
        Store.from_environment(home).client,
        only_run(f"sqlite:///{home / 'mlflow.db'}", run_id).info.run_id,
    )
    summary = {"phases_ms": record.summary["phases_ms"], "step_ms": record.summary["step_ms"]}
    written = {f"summary/{name}/{key}": value for name, of in summary.items() for key, value in of.items()}
    written |= {f"summary/{key}": record.summary[key] for key in ("samples_per_s", "phase_coverage")}
    for key, value in written.items():
        if value is not None:
            client.log_metric(mlflow_run, key, value)
    client.log_param(mlflow_run, "run_name", "mine")


def test_a_run_of_an_earlier_version_is_stored_and_is_replaced_when_it_is_delivered_again(
    home: Path, uri: str
) -> None:
    folder = delivered(home, "earlier")
    today = everything(uri, "earlier")
    as_version_1(home, "earlier")
    assert folder not in sync.lost(home)
    assert checked(home, folder) == []
    changed(home, "earlier", "UPDATE metrics SET value = 9 WHERE key = 'time_ms/step' AND run_uuid = ?")
    assert checked(home, folder) == [("values", NEW_RUN)]
    list(sync.deliver(home, [folder], again=True))
    assert everything(uri, "earlier") == today
    assert checked(home, folder) == []


def test_a_sweep_of_an_earlier_version_that_was_resumed_has_no_number_of_then(home: Path, uri: str) -> None:
    sweep = journals.begin(home / "runs", "swept", strategy="sweep", config={"question": "?", "track": True})
    sweep.set(summary={"done": 2, "rounds": 1, "wall_s.single.r1": 3.5})
    folder = sweep.folder
    finish(journals.end(sweep))
    assert [result.state for result in sync.deliver(home, [folder])] == ["delivered"]
    changed(home, "swept", f"DELETE FROM tags WHERE key = '{content.VERSION_TAG}' AND run_uuid = ?")
    run, client = only_run(uri, "swept"), Store.from_environment(home).client
    for key, value in {"summary/done": 1.0, "summary/rounds": 1.0, "mine": 7.0}.items():
        client.log_metric(run.info.run_id, key, value, timestamp=1000)  # at the end of then
    for _ in range(2):
        list(sync.deliver(home, [folder], again=True))
        found = only_run(uri, "swept")
        assert found.info.run_id == run.info.run_id
        assert found.data.tags[content.VERSION_TAG] == content.VERSION
        assert found.data.metrics.items() >= {"summary/done": 2.0, "summary/rounds": 1.0, "mine": 7.0}.items()
        assert "summary/wall_s.single.r1" not in found.data.metrics
        assert checked(home, folder) == []


def test_a_run_delivered_before_there_were_headlines_is_stored(home: Path) -> None:
    folder = delivered(home, "without")
    for table in ("metrics", "latest_metrics"):
        keys = ", ".join(f"'{key}'" for key in content.SINGLE if content.may_lack(key))
        changed(home, "without", f"DELETE FROM {table} WHERE key IN ({keys}) AND run_uuid = ?")
    assert folder not in sync.lost(home)
    assert checked(home, folder) == []


def test_sync_finds_by_itself_what_the_store_lost(home: Path) -> None:
    folder = delivered(home, "forgotten")
    changed(home, "forgotten", "DELETE FROM latest_metrics WHERE key = 'loss' AND run_uuid = ?")
    assert sync.lost(home) == [folder]
    list(sync.deliver(home, [folder], again=True, new_run=True))
    assert sync.lost(home) == []


def test_sync_compares_again_only_what_has_changed_in_the_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [delivered(home, run_id) for run_id in ("one", "other")]
    compared: list[Path] = []
    is_stored = stored.is_stored
    monkeypatch.setattr(stored, "is_stored", lambda *of: compared.append(of[1]) or is_stored(*of))
    assert sync.lost(home) == []
    assert compared == []  # the deliveries have compared them
    for folder in folders:  # of a version that did not
        (entry,) = ledger.read_ledger(folder).items()
        ledger.write_entry(folder, entry[0], replace(entry[1], points_crc=""))
    assert sync.lost(home) == []
    assert compared == folders
    assert sync.lost(home) == []
    assert compared == folders
    changed(home, "other", "UPDATE latest_metrics SET value = 7 WHERE key = 'loss' AND run_uuid = ?")
    assert sync.lost(home) == [folders[1]]
    assert sync.lost(home) == [folders[1]]
    assert compared == [*folders, folders[1], folders[1]]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE latest_metrics SET value = value + 1 WHERE key = 'loss' AND run_uuid = ?",
        "DELETE FROM latest_metrics WHERE key = 'time_ms/step' AND run_uuid = ?",
    ],
)
def test_a_loss_before_the_end_of_a_delivery_is_not_taken_for_what_was_delivered(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run_id = f"meanwhile-{change[:6]}"
    write_figures = MlflowRun.write_figures

    def lose(*of: Any) -> list[str]:
        changed(home, run_id, change)
        return write_figures(*of)

    monkeypatch.setattr(MlflowRun, "write_figures", lose)
    folder = delivered(home, run_id)
    assert folder in sync.lost(home)


@pytest.mark.usefixtures("home_with_store")
def test_a_deleted_database_is_found_and_delivered_again(dpexp_home: Path) -> None:
    folder = delivered(dpexp_home, "all")
    before = everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", "all")
    for path in dpexp_home.glob("mlflow.db*"):
        path.unlink()
    checked = script("runs.py", "check", "--store", "--json")
    document = json.loads(checked.stdout)
    assert checked.returncode == 1
    assert document["checked"] == 1
    assert [(row["run"], row["kind"]) for row in document["problems"]] == [("all", "missing")]
    assert not (dpexp_home / "mlflow.db").exists()
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert "all  delivered" in synced.stdout
    assert everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", "all") == before
    (folder / "record.json").unlink()
    repaired = script("runs.py", "check", "--store", "--repair")
    assert repaired.returncode == 0, repaired.stderr
    assert repaired.stdout.splitlines() == [
        "all  record: record.json: missing: the run died, and was not closed; repaired",
        "1 run checked, 1 problem",
    ]
    assert script("runs.py", "check", "all").stdout == "1 run checked, 0 problems\n"
    (folder / JOURNAL).write_bytes(b"")
    assert script("runs.py", "check", "--repair").returncode == 1


def test_a_relative_address_is_another_store_in_another_directory(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///shared.db")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    delivered(dpexp_home, "relative")
    monkeypatch.chdir(folders[1])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///shared.db")  # MLflow has set it, too
    assert ledger.delivered(dpexp_home, ["relative"]) == {"relative": "elsewhere"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folders[0]}/shared.db")
    assert ledger.delivered(dpexp_home, ["relative"]) == {"relative": "yes"}
    assert list(folders[1].iterdir()) == []


def test_a_home_that_was_moved_has_its_artifacts_and_leaves_nothing_behind(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(dpexp_home, "moved")
    before = everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", "moved")
    new = dpexp_home.rename(tmp_path / "new home")
    monkeypatch.setenv("DPEXP_HOME", str(new))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # which MLflow has set
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert everything(f"sqlite:///{new / 'mlflow.db'}", "moved") == before
    delivered(new, "later")
    assert script("runs.py", "check", "--store").stdout == "2 runs checked, 0 problems\n"
    assert not dpexp_home.exists()


def test_artifacts_out_of_reach_keep_their_addresses(tmp_path: Path) -> None:
    """A store that several machines, or containers, share."""
    folder, other = tmp_path / "mlruns", tmp_path / "elsewhere" / "mlruns"
    SqliteFile(tmp_path / "mlflow.db", other).create()
    here = SqliteFile(tmp_path / "mlflow.db", folder)
    query = "SELECT artifact_location FROM experiments"
    for address in (other, folder):
        here.create()
        with contextlib.closing(sqlite3.connect(here.path)) as connection:
            assert connection.execute(query).fetchall() == [(f"{address.as_uri()}/0",)]
        folder.mkdir(exist_ok=True)


@pytest.mark.parametrize("uri", ["", "sqlite:///runs.db"])
@pytest.mark.parametrize(("name", "misread"), [("what?", "?"), ("a%20b", "%20")])
def test_a_folder_that_no_sqlite_address_can_name_is_refused(
    tmp_path: Path, name: str, misread: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``DPEXP_HOME``, and as the working directory of a relative address."""
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(StoreError, match=re.escape(f"because {misread!r} in an SQLite address")):
        Store.from_environment(folder).open()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
