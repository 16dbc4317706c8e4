"""Delivery to servers: an MLflow server over HTTP on PostgreSQL, and networks that fail in every way."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import journals
import pytest
from mlflow_reader import everything, history, only_run
from servers import Proxy, mlflow_server, postgres
from tracking_processes import DRIVER, ROOT, drive, script

from dpexp.record import JOURNAL, finish, fold, load
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store import Store
from dpexp.tracking.upload import Upload

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy, among themselves


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as address:
        yield address


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An MLflow server on PostgreSQL, for all tests here: each has run ids of its own."""
    with mlflow_server(database, tmp_path_factory.mktemp("server") / "artifacts") as port:
        yield port


@pytest.fixture
def proxy(server: int) -> Iterator[Proxy]:
    with Proxy(server) as between:
        yield between


@pytest.fixture(autouse=True)
def quick_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging server is given up sooner than by default: it shortens the tests, and is a user's right."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


def steps_of(uri: str, run_id: str) -> list[int]:
    return [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, "loss")]


def test_a_server_gets_the_same_run_as_the_embedded_store(dpexp_home: Path, server: int) -> None:
    address = f"http://127.0.0.1:{server}"
    driven = drive("finish", MLFLOW_TRACKING_URI=address)
    delivery = driven.delivery()
    assert driven.over() == 0
    link = f"{address}/#/experiments/{delivery['experiment_id']}/runs/{delivery['mlflow_run_id']}"
    assert delivery["message"] == link
    assert script("runs.py", "sync", driven.run_id).returncode == 0
    embedded = everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", driven.run_id)
    assert everything(address, driven.run_id) == embedded
    assert [head.split()[-3] for head in script("runs.py", "list").stdout.splitlines()[1:]] == ["yes"]


def test_a_database_gets_the_same_run_without_a_server(dpexp_home: Path, database: str) -> None:
    finish(journals.complete(dpexp_home / "runs", "direct", experiment="without a server"))
    synced = script("runs.py", "sync", MLFLOW_TRACKING_URI=database)
    assert synced.returncode == 0, synced.stderr
    assert script("runs.py", "sync", "direct").returncode == 0
    assert everything(database, "direct") == everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", "direct")


@pytest.mark.parametrize(
    ("mode", "message"),
    [("refuse", "does not answer: connection refused"), ("hang", "it accepts, but does not answer in time")],
)
def test_a_server_that_is_away_costs_the_run_nothing(
    dpexp_home: Path, proxy: Proxy, server: int, mode: str, message: str
) -> None:
    proxy.mode = mode
    if mode == "refuse":
        proxy.down()
    driven = drive("finish", MLFLOW_TRACKING_URI=proxy.address)
    delivery = driven.delivery()
    assert driven.over() == 3
    assert message in delivery["message"]
    assert f"runs.py sync {driven.run_id}" in delivery["message"]
    assert len(load(dpexp_home / "runs" / driven.run_id).steps["loss"]) == 50
    late = script("runs.py", "sync", driven.run_id, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{server}")
    assert late.returncode == 0, late.stderr
    assert steps_of(f"http://127.0.0.1:{server}", driven.run_id) == list(range(50))


def test_a_server_that_comes_back_has_everything_by_the_end(dpexp_home: Path, proxy: Proxy) -> None:
    driven = drive("finish", steps=300, pause_s=0.2, MLFLOW_TRACKING_URI=proxy.address)
    while proxy.requests < 8:
        assert driven.process.poll() is None
    proxy.down()
    journal = dpexp_home / "runs" / driven.run_id / JOURNAL
    reached = len(fold(journal).steps["loss"])
    while len(fold(journal).steps["loss"]) < reached + 50:
        assert driven.process.poll() is None
    proxy.up()
    assert driven.delivery()["complete"]
    assert driven.over() == 0
    assert steps_of(proxy.address, driven.run_id) == list(range(300))


@pytest.mark.parametrize("answered", [3, 5, 7, 9, 12, 16])
def test_requests_whose_answers_are_lost_are_not_done_twice(
    dpexp_home: Path, proxy: Proxy, server: int, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """The server does what it is asked, and nobody hears of it: not even that a run was made."""
    run_id = f"swallowed{answered}"
    journal = journals.complete(dpexp_home / "runs", run_id, steps=100)
    finish(journal)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.address)
    store = Store.of(dpexp_home)
    store.open()
    proxy.swallow_after = proxy.requests + answered
    with pytest.raises(Exception, match=r"HTTPConnectionPool|Connection|API request"):
        Upload(store, journal).complete()
    proxy.swallow_after = -1
    Upload(store, journal).complete()
    address = f"http://127.0.0.1:{server}"
    assert steps_of(address, run_id) == list(range(100))
    assert everything(address, run_id)["status"] == "FINISHED"


def test_two_machines_that_bring_one_journal_make_one_run(tmp_path: Path, server: int) -> None:
    address = f"http://127.0.0.1:{server}"
    (tmp_path / "usb").mkdir()
    finish(journals.complete(tmp_path / "usb" / "runs", "brought"))
    homes = [tmp_path / name for name in ("a", "b")]
    syncs = []
    for home in homes:
        home.mkdir()
        command = [
            sys.executable,
            str(ROOT / "scripts" / "runs.py"),
            "sync",
            str(tmp_path / "usb" / "runs" / "brought"),
        ]
        environment = os.environ | {"DPEXP_HOME": str(home), "MLFLOW_TRACKING_URI": address}
        syncs.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    for sync in syncs:
        said, _ = sync.communicate(timeout=100)
        assert sync.returncode == 0, said
    assert steps_of(address, "brought") == list(range(100))


def test_the_experiment_and_the_login_of_mlflows_variables_are_used(proxy: Proxy) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    variables = {"MLFLOW_EXPERIMENT_NAME": "from mlflow", "MLFLOW_RUN_ID": "0" * 32}
    ran = script("run.py", "single", "--json", MLFLOW_TRACKING_URI=login, **variables)
    assert ran.returncode == 0, ran.stderr
    assert everything(proxy.address, json.loads(ran.stdout)["run_id"])["experiment"] == "from mlflow"
    assert b"Authorization: Basic " + base64.b64encode(b"me:hunter22") in proxy.heard
    token = drive("finish", MLFLOW_TRACKING_URI=proxy.address, MLFLOW_TRACKING_TOKEN="token-of-mine")
    assert token.delivery()["complete"]
    assert b"Authorization: Bearer token-of-mine" in proxy.heard


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "away"])
def test_credentials_stay_out_of_files_messages_and_process_lists(
    dpexp_home: Path, proxy: Proxy, is_up: bool
) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    if not is_up:
        proxy.down()
    driven = drive("finish", MLFLOW_TRACKING_URI=login, MLFLOW_TRACKING_TOKEN="token-of-mine")
    commands = Path(f"/proc/{driven.uploader}/cmdline").read_bytes()
    said = str(driven.delivery())
    synced = script("runs.py", "sync", "last", "--again", MLFLOW_TRACKING_URI=login)
    texts = [commands, said.encode(), synced.stdout.encode(), synced.stderr.encode()]
    texts += [path.read_bytes() for path in dpexp_home.rglob("*") if path.is_file()]
    assert len(texts) > 8
    assert not [text for text in texts if b"hunter22" in text or b"token-of-mine" in text]


def test_a_wrong_database_password_is_said_without_the_password(
    dpexp_home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database.replace("hunter22", "wrong-one"))
    with pytest.raises(StoreError, match="password authentication failed") as raised:
        Store.of(dpexp_home).open()
    assert "wrong-one" not in str(raised.value)


def test_a_journal_from_a_machine_without_mlflow_is_delivered_here(
    dpexp_home: Path, server: int, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{server}"
    (tmp_path / "bare" / "mlflow").mkdir(parents=True)
    (tmp_path / "bare" / "mlflow" / "__init__.py").write_text("raise ImportError('no mlflow here')")
    (tmp_path / "node").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "bare"), "DPEXP_HOME": str(tmp_path / "node")}
    node = subprocess.run(
        [sys.executable, str(DRIVER), "finish", "50", "0"], env=environment, capture_output=True, check=False
    )
    assert node.returncode == 3
    (journal,) = (tmp_path / "node" / "runs").glob(f"*/{JOURNAL}")
    synced = script("runs.py", "sync", tmp_path / "node" / "runs", MLFLOW_TRACKING_URI=address)
    assert synced.returncode == 0, synced.stderr
    there = everything(address, journal.parent.name)
    assert there["status"] == "FINISHED"
    assert len(there["metrics"]["loss"]) == 50
    assert "system/cpu_utilization_percentage" in there["metrics"]
    assert (dpexp_home / "runs" / journal.parent.name / JOURNAL).exists()
