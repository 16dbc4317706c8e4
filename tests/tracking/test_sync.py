"""Sync: a run that is not tracked stays off the store, and one that grows or dies is delivered."""

from pathlib import Path

import pytest
from helpers import journals
from helpers.command_lines import script
from helpers.mlflow_reader import everything, losses, mlflow_runs, only_run, steps_of

from dpexp.record.fold import WITHOUT_END, finish, load_record
from dpexp.record.journal import RECORD
from dpexp.tracking.deliver import Upload
from dpexp.tracking.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def synced(*words: str) -> str:
    done = script("runs.py", "sync", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_sweep_that_is_not_tracked_keeps_its_runs_off_the_store_until_they_are_named(
    runs: Path, uri: str
) -> None:
    finish(journals.end(journals.begin(runs, "sweep", strategy="sweep", config={"track": False})))
    finish(journals.complete(runs, "child", parent="sweep"))
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


def test_a_run_that_died_with_its_follower_is_closed(runs: Path, uri: str) -> None:
    journal = journals.begin(runs, "died")
    journals.step(journal, 0, 50)
    Upload(Store.from_environment(runs.parent), journal.folder).send_points()
    journal._file.close()
    assert not (journal.folder / RECORD).exists()
    assert only_run(uri, "died").info.status == "RUNNING"
    assert "closed: killed, 50 steps recorded" in synced()
    record = load_record(journal.folder)
    assert (record.status, record.error) == ("killed", WITHOUT_END)
    found = everything(uri, "died")
    assert found["status"] == "KILLED"
    assert found["tags"]["dpexp.error"].startswith("LostContact: the process that")
    assert len(losses(uri, "died")) == 50
