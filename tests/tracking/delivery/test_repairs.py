"""``runs.py check --repair``: one call repairs all that can be, whatever one run is like."""

import sqlite3
from contextlib import closing
from pathlib import Path

import journals
import pytest
from command_lines import script
from mlflow.tracking import MlflowClient
from mlflow_reader import only_run

from dpexp.record.journal.fold import finish
from dpexp.record.journal.seal import checksum
from dpexp.tracking.delivery import ledger, repair, sync
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.errors import StoreError

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def delivered(home: Path, run_id: str, parent: str = "") -> Path:
    journal = journals.begin(home / "runs", run_id, parent=parent)
    journals.step(journal, 0, 5)
    finish(journals.end(journal))
    (result,) = sync.deliver(home, [journal.folder])
    assert result.state == "delivered", result.message
    return journal.folder


def kinds(home: Path, folders: list[Path], *, mend: bool) -> list[tuple[str, str, bool]]:
    rows = repair.checked(home, folders, with_store=True, mend=mend)
    return [(row["run"], row["kind"], row["repaired"]) for row in rows]


def test_the_runs_of_a_sweep_that_was_deleted_get_its_new_id_in_the_same_repair(
    dpexp_home: Path, uri: str
) -> None:
    sweep = delivered(dpexp_home, "zz-sweep")
    child = delivered(dpexp_home, "child", parent="zz-sweep")
    MlflowClient(uri).delete_run(only_run(uri, "zz-sweep").info.run_id)
    assert kinds(dpexp_home, [child, sweep], mend=True) == [
        ("zz-sweep", "missing", True),
        ("child", "facts", True),
    ]
    new = only_run(uri, "zz-sweep").info.run_id
    assert only_run(uri, "child").data.tags["mlflow.parentRunId"] == new
    assert kinds(dpexp_home, [child, sweep], mend=False) == []


@pytest.mark.parametrize("is_whole_store", [True, False])
def test_sync_puts_the_runs_of_a_sweep_under_it_whatever_the_store_lost(
    dpexp_home: Path, uri: str, is_whole_store: bool
) -> None:
    """The ids of runs are random: one of a sweep may come before it, or after it."""
    delivered(dpexp_home, "mm-sweep")
    children = ("aa-child", "zz-child")
    for name in children:
        delivered(dpexp_home, name, parent="mm-sweep")
    if is_whole_store:
        for path in dpexp_home.glob("mlflow.db*"):
            path.unlink()
    else:
        MlflowClient(uri).delete_run(only_run(uri, "mm-sweep").info.run_id)
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    parents = {run_id: (mlflow_run, parent) for run_id, mlflow_run, parent in active_runs(dpexp_home)}
    assert [parents[name][1] for name in children] == [parents["mm-sweep"][0]] * 2
    assert script("runs.py", "check", "--store").stdout == "3 runs checked, 0 problems\n"
    assert script("runs.py", "sync").stdout == "everything is delivered\n"


def active_runs(home: Path) -> list[tuple[str, str, str]]:
    """(run id, MLflow run, its parent), read from the file: MLflow keeps one open that was deleted."""
    with closing(sqlite3.connect(home / "mlflow.db")) as store:
        return store.execute(
            "SELECT tags.value, runs.run_uuid, parents.value FROM runs JOIN tags USING (run_uuid) "
            "LEFT JOIN tags parents ON parents.run_uuid = runs.run_uuid "
            "AND parents.key = 'mlflow.parentRunId' "
            "WHERE tags.key = 'dpexp.run_id' AND lifecycle_stage = 'active'"
        ).fetchall()


@pytest.mark.parametrize("parent", ["../x", "..", "a/b", "foreign"])
def test_a_foreign_parent_is_no_problem_of_its_run(dpexp_home: Path, uri: str, parent: str) -> None:
    foreign = delivered(dpexp_home, "foreign", parent=parent)
    assert kinds(dpexp_home, [foreign], mend=False) == []


def test_a_run_that_cannot_be_compared_hides_no_other(dpexp_home: Path, uri: str) -> None:
    bad, good = delivered(dpexp_home, "bad"), delivered(dpexp_home, "good")
    now = checksum(bad / "journal.jsonl")
    ledger.write_entry(bad, uri, LedgerEntry("1", "\ud800", True, now["bytes"], now["crc"]))
    MlflowClient(uri).delete_run(only_run(uri, "good").info.run_id)
    rows = repair.checked(dpexp_home, [bad, good], with_store=True, mend=False)
    assert next(rows)["run"] == "good"
    with pytest.raises(StoreError, match="run bad: "):
        next(rows)


def test_one_repair_also_repairs_what_the_first_uncovers(dpexp_home: Path, uri: str) -> None:
    folder = delivered(dpexp_home, "hidden")
    client, mlflow_run = MlflowClient(uri), only_run(uri, "hidden").info.run_id
    client.log_metric(mlflow_run, "loss", 9.0, timestamp=1, step=2)
    (folder / ledger.LEDGER).unlink()
    found = kinds(dpexp_home, [folder], mend=True)
    assert found == [("hidden", "missing", True), ("hidden", "values", True)]
    assert kinds(dpexp_home, [folder], mend=False) == []


def test_a_run_whose_uploader_is_at_work_is_no_problem(dpexp_home: Path, uri: str) -> None:
    folder = delivered(dpexp_home, "drawing")
    entry = ledger.read_ledger(folder)[uri]
    ledger.write_entry(folder, uri, LedgerEntry(entry.experiment_id, entry.mlflow_run_id))
    with ledger.delivery_lock(folder, 0):
        assert kinds(dpexp_home, [folder], mend=False) == []
    assert kinds(dpexp_home, [folder], mend=False) == [("drawing", "missing", False)]
