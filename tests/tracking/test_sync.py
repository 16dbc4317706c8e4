"""Sync: what a store has lost comes back, and a run that is not tracked stays off it."""

from pathlib import Path

import pytest
from helpers import journals
from helpers.command_lines import script
from helpers.mlflow_reader import everything, mlflow_runs, only_run, steps_of
from mlflow.tracking import MlflowClient

from dpexp.record.fold import finish
from dpexp.tracking import ledger
from dpexp.tracking.sync import sync

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def synced(*words: str) -> str:
    done = script("runs.py", "sync", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def make_sweep(runs: Path, **config: object) -> None:
    """A sweep with one run, not delivered."""
    sweep = journals.begin(runs, "sweep", strategy="sweep", config=config)
    finish(journals.end(sweep))
    finish(journals.complete(runs, "child", parent="sweep"))


def test_sync_finds_what_the_store_lost_and_delivers_it_again(runs: Path, uri: str) -> None:
    make_sweep(runs)
    synced()
    assert synced() == "everything is delivered\n"
    before = everything(uri, "child")
    for run_id in ("child", "sweep"):
        MlflowClient(uri).delete_run(only_run(uri, run_id).info.run_id)
    assert "child  delivered" in synced()
    after = everything(uri, "child")
    assert after["tags"].pop("mlflow.parentRunId") == only_run(uri, "sweep").info.run_id
    del before["tags"]["mlflow.parentRunId"]
    assert after == before
    assert synced() == "everything is delivered\n"


def test_a_sweep_that_is_not_tracked_keeps_its_runs_off_the_store_until_they_are_named(
    runs: Path, uri: str
) -> None:
    make_sweep(runs, track=False)
    assert synced() == "everything is delivered; not delivered unless named: 2 with --no-track\n"
    assert not mlflow_runs(uri, "child")
    synced("child")
    assert "mlflow.parentRunId" not in only_run(uri, "child").data.tags
    assert not mlflow_runs(uri, "sweep")


def test_the_whole_of_a_journal_that_was_delivered_in_part_follows(
    runs: Path, uri: str, tmp_path: Path
) -> None:
    """The first copy was made while the run was running elsewhere, and ends in the middle of a line."""
    journal = journals.complete(tmp_path / "elsewhere", "copied", steps=100)
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) // 2])
    synced(str(journal))
    assert only_run(uri, "copied").info.status == "KILLED"
    assert synced() == "everything is delivered\n"
    journal.write_bytes(content)
    synced(str(journal))
    assert everything(uri, "copied")["status"] == "FINISHED"
    assert steps_of(uri, "copied") == list(range(100))


def test_a_run_that_another_process_delivers_is_not_delivered_twice(
    runs: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = journals.complete(runs, "one").parent
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT_S", 0.1)
    with ledger.lock(folder):
        *_, result = sync(runs.parent)
    assert (result.state, result.message) == ("not delivered", "another process is delivering run one")
    assert not mlflow_runs(uri, "one")
    assert [each.state for each in sync(runs.parent)] == ["delivered"]
