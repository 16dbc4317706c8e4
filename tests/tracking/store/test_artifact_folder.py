"""Artifacts that cannot be written, and few file descriptors: what is wrong is said, and all comes later."""

from pathlib import Path

import journals
import pytest
from command_lines import python, script
from mlflow.tracking import MlflowClient
from mlflow_reader import everything, only_run

from dpexp.tracking.delivery import repair

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

LIMITED = """
import resource, runpy, sys
limit, *sys.argv = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
runpy.run_path(f"scripts/{sys.argv[0]}", run_name="__main__")
"""


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def is_whole(home: Path, uri: str, folder: Path) -> bool:
    """Whether the store has all of a run, its pictures and traces too."""
    run = only_run(uri, folder.name).info
    traces = MlflowClient(uri).search_traces(locations=[run.experiment_id], run_id=run.run_id)
    assert len(traces) == 2, "of the typical step, and of the slowest"
    assert {"phases.png", "record.json"} <= set(everything(uri, folder.name)["artifacts"])
    return repair.run_problems(home, folder, with_store=True) == []


@pytest.mark.parametrize("place", ["mlruns", "mlruns/dpexp"])
def test_artifacts_that_cannot_be_written_are_named_and_come_later(
    home_with_store: Path, uri: str, place: str
) -> None:
    folder = journals.complete(home_with_store / "runs").parent
    path = home_with_store / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not a folder")
    failed = script("runs.py", "sync")
    assert failed.returncode == 3
    assert "Traceback" not in failed.stderr
    assert "needs a folder where there is something else: rename that" in failed.stderr
    assert str(path) in failed.stderr
    path.unlink()
    assert script("runs.py", "sync").returncode == 0
    assert is_whole(home_with_store, uri, folder)


@pytest.mark.usefixtures("temporary_folder")
def test_few_file_descriptors_are_named_and_nothing_is_lost_or_left(home_with_store: Path, uri: str) -> None:
    folder = journals.complete(home_with_store / "runs").parent
    for limit in (5, 8, *range(10, 40, 2)):  # how many are enough depends on the machine
        failed = python("-c", LIMITED, limit, "runs.py", "sync")
        if failed.returncode == 0:
            break
        assert failed.returncode == 3, (limit, failed)
        assert "Traceback" not in failed.stderr
        assert "sqlalche.me" not in failed.stderr, (limit, failed.stderr)
        assert "ulimit -n" in failed.stderr, (limit, failed.stderr)
    assert failed.returncode == 0
    assert limit > 8
    assert python("-c", LIMITED, 7, "runs.py", "list").returncode == 0
    refused = python("-c", LIMITED, 7, "run.py", "single", "--steps", "1", "--no-check")
    assert refused.returncode == 1
    assert "Too many open files" in refused.stderr
    assert "ulimit -n" in refused.stderr
    assert script("runs.py", "reap").returncode == 0
    assert is_whole(home_with_store, uri, folder)
