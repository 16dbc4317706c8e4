"""Artifacts that cannot be written: what is wrong is said, and all comes later."""

from pathlib import Path

import journals
import pytest
from command_lines import script
from mlflow_reader import everything

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture
def uri(home_with_store: Path) -> str:
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


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
    assert "record.json" in everything(uri, folder.name)["artifacts"]
