"""What a user kept off a store stays off it, whoever delivers; whoever names a run delivers it."""

from collections.abc import Mapping
from pathlib import Path

import journals
import pytest
from command_lines import script
from mlflow_reader import mlflow_runs, only_run

from dpexp.config.run_config import config_digest
from dpexp.record.journal.fold import finish, load
from dpexp.record.runs.begin import begin
from dpexp.study.reproduce.reproduce import config_of
from dpexp.tracking.delivery import ledger, repair, sync
from dpexp.tracking.delivery.upload import Upload
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other
OFF = {"strategy": "whole", "track": False}
ON = {"strategy": "whole", "track": True}


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def ended(runs: Path, run_id: str, config: Mapping[str, object] = OFF, **changes: str) -> Path:
    """The journal of a run that has finished."""
    journal = journals.complete(runs, run_id, config=dict(config), **changes)
    finish(journal)
    return journal


def in_store(uri: str, *run_ids: str) -> list[str]:
    return [run_id for run_id in run_ids if mlflow_runs(uri, run_id)]


def test_an_upload_of_a_run_that_is_not_tracked_is_refused(runs: Path, uri: str) -> None:
    store = Store.from_environment(runs.parent)
    with pytest.raises(StoreError, match="run off is not tracked"):
        Upload(store, ended(runs, "off")).complete()
    assert not in_store(uri, "off")


def test_reap_closes_a_run_that_is_not_tracked_and_makes_no_store(runs: Path) -> None:
    journal = journals.begin(runs, "off", config=OFF)
    journals.step(journal, 0, 30)
    journal.close()
    reaped = script("runs.py", "reap")
    assert reaped.returncode == 0, reaped.stderr
    assert reaped.stdout.splitlines() == [
        "off  closed: killed, 30 steps recorded",
        "off  not tracked: python scripts/runs.py sync off delivers it",
    ]
    assert script("runs.py", "reap").stdout == "no dead run\n"
    assert not (runs.parent / "mlflow.db").exists()


def test_a_tracked_run_that_resumes_without_tracking_stays_as_far_as_it_was_tracked(
    runs: Path, uri: str
) -> None:
    facts = load(ended(runs, "on", ON).parent).to_dict()
    assert script("runs.py", "sync").returncode == 0
    digest = {"config_digest": config_digest(OFF)}
    with begin(
        runs.parent, "on", {**facts, "status": "running", "config": OFF, **digest}, resumes=True
    ) as journal:
        journals.step(journal, 100, 50)
    reaped = script("runs.py", "reap")
    assert "on  not tracked" in reaped.stdout
    assert "not delivered unless named: 1 with --no-track" in script("runs.py", "sync").stdout
    assert script("runs.py", "check", "--store", "--repair").stdout == "1 run checked, 0 problems\n"
    assert only_run(uri, "on").info.status == "FINISHED"


@pytest.mark.parametrize("what", ["deleted", "ledger"])
def test_a_run_that_was_named_is_repaired_and_else_left_alone(runs: Path, uri: str, what: str) -> None:
    """Of a run without tracking whose ledger is damaged nothing says that a user has named it."""
    home, folder = runs.parent, ended(runs, "named").parent
    assert script("runs.py", "check", "--store", "--repair").stdout == "1 run checked, 0 problems\n"
    assert not in_store(uri, "named")
    assert script("runs.py", "sync", "named").returncode == 0
    assert in_store(uri, "named")
    assert repair.run_problems(home, folder, with_store=True) == []
    if what == "ledger":
        (folder / ledger.LEDGER).write_text("{}")
    else:
        store = Store.from_environment(home)
        store.client.delete_run(only_run(uri, "named").info.run_id)
    found = repair.run_problems(home, folder, with_store=True)
    assert [problem.kind for problem in found] == ["ledger" if what == "ledger" else "missing"]
    repair.repair(home, folder, found)
    assert repair.run_problems(home, folder, with_store=True) == []
    assert in_store(uri, "named")


@pytest.mark.parametrize("track", [True, False])
def test_the_sweep_says_whether_its_runs_may_be_delivered(runs: Path, uri: str, track: bool) -> None:
    sweep = journals.begin(runs, "sweep", strategy="sweep", config={"question": "?", "track": track})
    finish(journals.end(sweep, "killed"))
    for run_id in ("first", "second"):
        ended(runs, run_id, OFF if run_id == "first" else ON, parent="sweep")
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert script("runs.py", "check", "--store", "--repair").returncode == 0
    everything = ["sweep", "first", "second"]
    assert in_store(uri, *everything) == (everything if track else [])
    assert script("runs.py", "sync", "second").returncode == 0
    assert in_store(uri, *everything) == (everything if track else ["second"])
    parents = [only_run(uri, "second").data.tags.get("mlflow.parentRunId")]
    assert parents == ([only_run(uri, "sweep").info.run_id] if track else [None])


def test_a_run_of_a_sweep_of_before_is_as_its_own_config_says(runs: Path) -> None:
    finish(journals.end(journals.begin(runs, "sweep", strategy="sweep", config={"question": "?"})))
    ended(runs, "off", OFF, parent="sweep")
    ended(runs, "on", ON, parent="sweep")
    assert [folder.name for folder in sync.undelivered(runs.parent)] == ["on", "sweep"]


def test_a_run_whose_journal_has_lost_its_config_is_delivered_only_when_named(runs: Path) -> None:
    journal = ended(runs, "lost")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[1:]))
    assert sync.undelivered(runs.parent) == []
    assert [folder.name for folder in sync.untracked(runs.parent)] == ["lost"]


def test_a_reproduction_is_tracked_only_where_the_run_was(runs: Path) -> None:
    off, on = (load(ended(runs, f"{n}", config).parent) for n, config in enumerate((OFF, ON)))
    assert config_of(off)["track"] is False
    assert config_of(on)["track"] is True
    assert config_of(on, track=False)["track"] is False
