"""Delivery to an MLflow server, and networks that fail."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import journals
from helpers.command_lines import script
from helpers.mlflow_reader import everything, only_run, steps_of
from helpers.servers import Proxy, mlflow_server
from helpers.tracking_processes import DRIVER, drive, wait_until

from dpexp.record.fold import load_record
from dpexp.record.journal import JOURNAL
from dpexp.tracking.deliver import LOG
from dpexp.tracking.ledger import LEDGER

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other
SECRETS = (b"hunter22", b"token-of-mine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An MLflow server for all tests of this file, which use different run ids."""
    folder = tmp_path_factory.mktemp("server")
    with mlflow_server(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts") as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a busy server may take longer than the default
    with Proxy(server) as between:
        yield between


def secrets_in(home: Path, *texts: bytes) -> list[bytes]:
    """The texts, and the contents of files of the home, that have a secret."""
    contents = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert len(contents) > 3
    return [text for text in (*texts, *contents) if any(secret in text for secret in SECRETS)]


@pytest.mark.usefixtures("home_with_store", "proxy")
def test_a_server_gets_a_run_as_the_embedded_store(dpexp_home: Path, server: int) -> None:
    address, embedded = f"http://127.0.0.1:{server}", f"sqlite:///{dpexp_home / 'mlflow.db'}"
    journals.complete(dpexp_home / "runs", "served")
    synced = script("runs.py", "sync", "served", MLFLOW_TRACKING_URI=address)
    assert synced.returncode == 0, synced.stderr
    info = only_run(address, "served").info
    link = f"{address}/#/experiments/{info.experiment_id}/runs/{info.run_id}?workflowType=machine_learning"
    assert link in synced.stdout
    assert script("runs.py", "sync", "served").returncode == 0
    assert everything(address, "served") == everything(embedded, "served")
    (listed,) = json.loads(script("runs.py", "list", "--json").stdout)
    assert listed["delivered"] == "yes"


def test_a_server_that_is_away_costs_the_run_nothing_and_its_login_is_nowhere(
    dpexp_home: Path, proxy: Proxy, server: int
) -> None:
    proxy.down()
    login = proxy.address.replace("http://", "http://me:hunter22@")
    driver = drive("finish", MLFLOW_TRACKING_URI=login, MLFLOW_TRACKING_TOKEN="token-of-mine")
    commands = Path(f"/proc/{driver.follower}/cmdline").read_bytes()
    delivery = driver.delivery()
    assert driver.wait() == 3
    assert "cannot be used: connection refused" in delivery["message"]
    assert f"runs.py sync {driver.run_id}" in delivery["message"]
    assert len(load_record(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 50
    assert not secrets_in(dpexp_home, commands, delivery["message"].encode())
    late = script("runs.py", "sync", driver.run_id, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{server}")
    assert late.returncode == 0, late.stderr
    assert steps_of(f"http://127.0.0.1:{server}", driver.run_id) == list(range(50))


def test_a_server_that_fails_and_comes_back_has_everything_by_the_end(dpexp_home: Path, proxy: Proxy) -> None:
    driver = drive("finish", held=True, MLFLOW_TRACKING_URI=proxy.address)
    folder = dpexp_home / "runs" / driver.run_id
    wait_until((folder / LEDGER).exists, "an MLflow run")
    proxy.failing = True
    driver.record(50)
    wait_until((folder / LOG).exists, "a failed delivery")
    proxy.down()
    proxy.failing = False
    proxy.up()
    driver.record(50)
    assert driver.delivery()["complete"]
    assert driver.wait() == 0
    assert steps_of(proxy.address, driver.run_id) == list(range(150))


@pytest.mark.usefixtures("proxy")
def test_a_journal_from_a_machine_without_mlflow_is_delivered_here(
    dpexp_home: Path, server: int, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{server}"
    (tmp_path / "bare" / "mlflow").mkdir(parents=True)
    (tmp_path / "bare" / "mlflow" / "__init__.py").write_text("raise ImportError('no mlflow here')")
    (tmp_path / "node").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "bare"), "DPEXP_HOME": str(tmp_path / "node")}
    node = subprocess.run(
        [sys.executable, str(DRIVER), "finish", "50", "60"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert node.returncode == 3
    assert b"mlflow cannot be imported here (no mlflow here)" in node.stdout
    (journal,) = (tmp_path / "node" / "runs").glob(f"*/{JOURNAL}")
    synced = script("runs.py", "sync", tmp_path / "node" / "runs", MLFLOW_TRACKING_URI=address)
    assert synced.returncode == 0, synced.stderr
    found = everything(address, journal.parent.name)
    assert found["status"] == "FINISHED"
    assert len(found["metrics"]["loss"]) == 50
    assert (dpexp_home / "runs" / journal.parent.name / JOURNAL).exists()
