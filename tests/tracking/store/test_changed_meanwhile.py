"""What users do in MLflow's pages while a run is delivered, and before the next ``sync``."""

from collections.abc import Callable
from pathlib import Path

import journals
import pytest
from mlflow.tracking import MlflowClient
from mlflow_reader import everything, history, only_run

from dpexp.record.journal.fold import finish
from dpexp.tracking.delivery import repair, sync
from dpexp.tracking.delivery.upload import Upload
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other
Change = Callable[[MlflowClient, str], object]


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def experiment_of(client: MlflowClient, run: str) -> str:
    return str(client.get_run(run).info.experiment_id)


CHANGES: dict[str, Change] = {
    "run deleted": lambda client, run: client.delete_run(run),
    "run renamed": lambda client, run: client.update_run(run, name="another name"),
    "experiment renamed": lambda client, run: client.rename_experiment(experiment_of(client, run), "renamed"),
}


def steps_of(uri: str, run_id: str) -> list[int]:
    return [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, "loss")]


def problems(home: Path, folder: Path) -> list[str]:
    return [row["kind"] for row in repair.checked(home, [folder], with_store=True, mend=False)]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_while_a_run_is_delivered_neither_loses_nor_doubles_it(
    dpexp_home: Path, uri: str, change: str
) -> None:
    journal = journals.begin(dpexp_home / "runs", "meanwhile")
    journals.step(journal, 0, 10)
    upload = Upload(Store.from_environment(dpexp_home), journal.path)
    upload.advance()
    CHANGES[change](MlflowClient(uri), only_run(uri, "meanwhile").info.run_id)
    journals.step(journal, 10, 10)
    finish(journals.end(journal))
    list(sync.deliver(dpexp_home, [journal.folder]))  # as the uploader's end, or a sync after it
    assert problems(dpexp_home, journal.folder) == []
    assert steps_of(uri, "meanwhile") == list(range(20))
    assert everything(uri, "meanwhile")["status"] == "FINISHED"


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_after_delivery_is_found_or_is_the_users_choice(
    dpexp_home: Path, uri: str, change: str
) -> None:
    journal = journals.begin(dpexp_home / "runs", "after")
    journals.step(journal, 0, 10)
    finish(journals.end(journal))
    list(sync.deliver(dpexp_home, [journal.folder]))
    CHANGES[change](MlflowClient(uri), only_run(uri, "after").info.run_id)
    found = problems(dpexp_home, journal.folder)
    assert found == (["missing"] if change == "run deleted" else [])
    list(repair.checked(dpexp_home, [journal.folder], with_store=True, mend=True))
    assert problems(dpexp_home, journal.folder) == []
    assert steps_of(uri, "after") == list(range(10))


def test_a_deleted_experiment_is_named_with_how_to_restore_it_and_its_runs_follow(
    dpexp_home: Path, uri: str
) -> None:
    journal = journals.begin(dpexp_home / "runs", "deleted")
    journals.step(journal, 0, 10)
    upload = Upload(Store.from_environment(dpexp_home), journal.path)
    upload.advance()
    client = MlflowClient(uri)
    experiment = experiment_of(client, only_run(uri, "deleted").info.run_id)
    client.delete_experiment(experiment)
    journals.step(journal, 10, 10)
    finish(journals.end(journal))
    (result,) = sync.deliver(dpexp_home, [journal.folder])
    assert f"mlflow experiments restore -x {experiment}" in result.message
    assert problems(dpexp_home, journal.folder) == ["missing"]
    client.restore_experiment(experiment)
    (result,) = sync.deliver(dpexp_home, [journal.folder])
    assert result.state == "delivered", result.message
    assert steps_of(uri, "deleted") == list(range(20))
    assert problems(dpexp_home, journal.folder) == []
