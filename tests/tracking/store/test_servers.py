"""Delivery to an MLflow server, and networks that fail in several ways."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import journals
import pytest
from command_lines import ROOT, script, shared, wait
from mlflow_reader import everything, history, only_run
from servers import Proxy, mlflow_server
from tracking_processes import DRIVER, TIMEOUT_S, drive, wait_until

from dpexp.record.journal import JOURNAL, Journal
from dpexp.record.record import Record, finish
from dpexp.tracking.delivery.upload import Upload
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An MLflow server for all tests of this file, which use different run ids."""
    folder = tmp_path_factory.mktemp("server")
    with mlflow_server(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts") as port:
        yield port


@pytest.fixture
def proxy(server: int) -> Iterator[Proxy]:
    with Proxy(server) as between:
        yield between


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server that works may take longer than dpexp's default timeout."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")


def steps_of(uri: str, run_id: str) -> list[int]:
    return [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, "loss")]


@pytest.mark.usefixtures("home_with_store")
def test_a_server_gets_the_same_run_as_the_embedded_store(dpexp_home: Path, server: int) -> None:
    address = f"http://127.0.0.1:{server}"
    driver = drive("finish", MLFLOW_TRACKING_URI=address)
    delivery = driver.delivery()
    assert driver.wait() == 0
    link = f"{address}/#/experiments/{delivery['experiment_id']}/runs/{delivery['mlflow_run_id']}"
    assert delivery["message"] == f"{link}?workflowType=machine_learning"
    assert script("runs.py", "sync", driver.run_id).returncode == 0
    embedded = everything(f"sqlite:///{dpexp_home / 'mlflow.db'}", driver.run_id)
    assert everything(address, driver.run_id) == embedded
    assert [line.split()[-3] for line in script("runs.py", "list").stdout.splitlines()[1:]] == ["yes"]


@pytest.mark.usefixtures("home_with_store")
def test_a_server_gets_a_restarted_run_as_the_embedded_store(
    dpexp_home: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, embedded = f"http://127.0.0.1:{server}", f"sqlite:///{dpexp_home / 'mlflow.db'}"
    journal = journals.begin(dpexp_home / "runs", "restarted", experiment="restarts")
    journals.step(journal, 0, 20)
    journals.phases(journal)
    finish(journals.end(journal, "failed", {"type": "LostContact", "message": "rank 1"}))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    Upload(Store.from_environment(dpexp_home), journal.path).complete()
    replaced = only_run(address, "restarted").info
    journal = Journal.reopen(journal.folder)
    journal.set(status="running", ended=None, error=None)
    journals.step(journal, 0, 50)
    finish(journals.end(journal))
    for uri in (address, embedded):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        Upload(Store.from_environment(dpexp_home), journal.path).complete()
    assert everything(address, "restarted") == everything(embedded, "restarted")
    assert steps_of(address, "restarted") == list(range(50))
    assert only_run(address, "restarted").info.run_id != replaced.run_id


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("refuse", "does not answer: connection refused"),
        ("hang", "it accepts connections, but does not answer in time"),
    ],
)
def test_a_server_that_is_away_costs_the_run_nothing(
    dpexp_home: Path, proxy: Proxy, server: int, mode: str, message: str
) -> None:
    proxy.fault = "hang" if mode == "hang" else ""
    if mode == "refuse":
        proxy.down()
    driver = drive("finish", MLFLOW_TRACKING_URI=proxy.address)
    delivery = driver.delivery()
    assert driver.wait() == 3
    assert message in delivery["message"]
    assert f"runs.py sync {driver.run_id}" in delivery["message"]
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 50
    late = script("runs.py", "sync", driver.run_id, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{server}")
    assert late.returncode == 0, late.stderr
    assert steps_of(f"http://127.0.0.1:{server}", driver.run_id) == list(range(50))


def test_a_server_that_comes_back_has_everything_by_the_end(dpexp_home: Path, proxy: Proxy) -> None:
    driver = drive("finish", held=True, MLFLOW_TRACKING_URI=proxy.address)
    folder = dpexp_home / "runs" / driver.run_id
    wait_until((folder / "delivery.json").exists, "an MLflow run")
    proxy.down()
    driver.record(50)
    wait_until((folder / "uploader.log").exists, "a failed delivery")
    proxy.up()
    driver.record(50)
    assert driver.delivery()["complete"]
    assert driver.wait() == 0
    assert steps_of(proxy.address, driver.run_id) == list(range(150))


@pytest.mark.parametrize("answered", [3, 7, 16])
def test_requests_whose_answers_are_lost_are_not_done_twice(
    dpexp_home: Path, proxy: Proxy, server: int, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """The server carries out every request, but the client receives no answer, not even to create_run."""
    run_id = f"swallowed{answered}"
    journal = journals.complete(dpexp_home / "runs", run_id, steps=100)
    finish(journal)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.address)
    store = Store.from_environment(dpexp_home)
    store.open()
    proxy.swallow_after = proxy.requests + answered
    with pytest.raises(Exception, match=r"HTTPConnectionPool|Connection|API request"):
        Upload(store, journal).complete()
    proxy.swallow_after = -1
    Upload(store, journal).complete()
    address = f"http://127.0.0.1:{server}"
    assert steps_of(address, run_id) == list(range(100))
    assert everything(address, run_id)["status"] == "FINISHED"


def test_two_machines_that_deliver_one_journal_create_one_run(tmp_path: Path, server: int) -> None:
    address = f"http://127.0.0.1:{server}"
    (tmp_path / "usb").mkdir()
    finish(journals.complete(tmp_path / "usb" / "runs", "copied"))
    homes = [tmp_path / name for name in ("a", "b")]
    syncs = []
    for home in homes:
        home.mkdir()
        words = (str(ROOT / "scripts" / "runs.py"), "sync", str(tmp_path / "usb" / "runs" / "copied"))
        syncs.append(shared().start(*words, DPEXP_HOME=str(home), MLFLOW_TRACKING_URI=address))
    for sync in syncs:
        output = wait(sync)
        assert sync.returncode == 0, output
    assert steps_of(address, "copied") == list(range(100))


def test_the_experiment_and_the_login_of_mlflows_variables_are_used(proxy: Proxy) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    variables = {"MLFLOW_EXPERIMENT_NAME": "from mlflow", "MLFLOW_RUN_ID": "0" * 32}
    words = ("single", "--json", "--track-timeout", TIMEOUT_S)
    ran = script("run.py", *words, MLFLOW_TRACKING_URI=login, **variables)
    assert ran.returncode == 0, ran.stderr
    assert everything(proxy.address, json.loads(ran.stdout)["run_id"])["experiment"] == "from mlflow"
    assert b"Authorization: Basic " + base64.b64encode(b"me:hunter22") in proxy.received
    token = drive("finish", MLFLOW_TRACKING_URI=proxy.address, MLFLOW_TRACKING_TOKEN="token-of-mine")
    assert token.delivery()["complete"]
    assert b"Authorization: Bearer token-of-mine" in proxy.received


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "away"])
def test_credentials_stay_out_of_files_messages_and_process_lists(
    dpexp_home: Path, proxy: Proxy, is_up: bool
) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    if not is_up:
        proxy.down()
    driver = drive("finish", before=(), MLFLOW_TRACKING_URI=login, MLFLOW_TRACKING_TOKEN="token-of-mine")
    commands = Path(f"/proc/{driver.uploader}/cmdline").read_bytes()
    delivery = str(driver.delivery())
    synced = script("runs.py", "sync", "last", "--again", MLFLOW_TRACKING_URI=login)
    texts = [commands, delivery.encode(), synced.stdout.encode(), synced.stderr.encode()]
    texts += [path.read_bytes() for path in dpexp_home.rglob("*") if path.is_file()]
    assert len(texts) > 7
    assert not [text for text in texts if b"hunter22" in text or b"token-of-mine" in text]


@pytest.mark.parametrize("password", ["hunt/ertwo", "hunt ertwo", "hunt#ertwo", "[huntertwo", "8812/ertwo"])
@pytest.mark.parametrize("kind", ["http", "postgresql"])
def test_a_password_that_must_be_encoded_is_reported_without_it(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch, kind: str, password: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{kind}://me.invalid:{password}@127.0.0.1:1/x")
    with pytest.raises(StoreError) as raised:
        Store.from_environment(dpexp_home).open()
    message = str(raised.value)
    assert "***@127.0.0.1:1/x" in message
    assert not [part for part in ("hunt", "ertwo", "8812", "me.invalid") if part in message]


def test_a_database_that_is_away_is_named(dpexp_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter22@127.0.0.1:9/x")
    with pytest.raises(StoreError, match=r"\*\*\*@127.0.0.1:9/x does not answer: connection refused"):
        Store.from_environment(dpexp_home).open()


def test_a_journal_from_a_machine_without_mlflow_is_delivered_here(
    dpexp_home: Path, server: int, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{server}"
    (tmp_path / "bare" / "mlflow").mkdir(parents=True)
    (tmp_path / "bare" / "mlflow" / "__init__.py").write_text("raise ImportError('no mlflow here')")
    (tmp_path / "node").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "bare"), "DPEXP_HOME": str(tmp_path / "node")}
    node = subprocess.run(
        [sys.executable, str(DRIVER), "finish", "50", "0", "60"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert node.returncode == 3
    (journal,) = (tmp_path / "node" / "runs").glob(f"*/{JOURNAL}")
    synced = script("runs.py", "sync", tmp_path / "node" / "runs", MLFLOW_TRACKING_URI=address)
    assert synced.returncode == 0, synced.stderr
    found = everything(address, journal.parent.name)
    assert found["status"] == "FINISHED"
    assert len(found["metrics"]["loss"]) == 50
    assert (dpexp_home / "runs" / journal.parent.name / JOURNAL).exists()
