"""Delivery to an MLflow server, networks that fail in several ways, and kills at any moment."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import journals
import pytest
from command_lines import SCRIPT, Command, script, shared, wait
from launching import words
from mlflow_reader import everything, losses, only_run, steps_of
from servers import Proxy, mlflow_server
from tracking_processes import DRIVER, TIMEOUT_S, drive, wait_until

from dpexp.record.journal import JOURNAL
from dpexp.record.record import Record, fold
from dpexp.record.runs import begin
from dpexp.tracking.deliver import LOG, Upload
from dpexp.tracking.ledger import LEDGER
from dpexp.tracking.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other
STEPS = 100


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


@pytest.fixture
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server that works may take longer than dpexp's default timeout."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")


def start(folder: Path, **environment: str) -> Command:
    """Start a run of ``STEPS`` steps of 20 ms."""
    command = [word for word in words(folder, "single", STEPS) if word != "--json"]
    return shared().start(SCRIPT, *command, "--track-timeout", "2", **environment)


@pytest.mark.usefixtures("home_with_store", "patient_client")
def test_a_server_gets_a_run_as_the_embedded_store_also_one_that_restarted(
    dpexp_home: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, embedded = f"http://127.0.0.1:{server}", f"sqlite:///{dpexp_home / 'mlflow.db'}"
    driver = drive("finish", MLFLOW_TRACKING_URI=address)
    delivery = driver.delivery()
    assert driver.wait() == 0
    info = only_run(address, driver.run_id).info
    link = f"{address}/#/experiments/{info.experiment_id}/runs/{info.run_id}?workflowType=machine_learning"
    assert delivery["message"] == link
    assert script("runs.py", "sync", driver.run_id).returncode == 0
    assert everything(address, driver.run_id) == everything(embedded, driver.run_id)
    (listed,) = json.loads(script("runs.py", "list", "--json").stdout)
    assert listed["delivered"] == "yes"

    folder = dpexp_home / "runs" / driver.run_id
    with begin(dpexp_home, folder.name, {"config": {}}) as journal:
        journals.step(journal, 0, 60)
        journals.end(journal)
    for uri in (address, embedded):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        Upload(Store.from_environment(dpexp_home), folder).complete()
    assert everything(address, driver.run_id) == everything(embedded, driver.run_id)
    assert steps_of(address, driver.run_id) == list(range(60))
    assert only_run(address, driver.run_id).info.run_id != info.run_id


@pytest.mark.parametrize(
    ("mode", "message"),
    [("refuse", "cannot be used: connection refused"), ("hang", "cannot be used: no answer in time")],
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
    address = f"http://127.0.0.1:{server}"
    late = script("runs.py", "sync", driver.run_id, MLFLOW_TRACKING_URI=address)
    assert late.returncode == 0, late.stderr
    assert steps_of(address, driver.run_id) == list(range(50))


@pytest.mark.usefixtures("patient_client")
def test_a_server_that_comes_back_has_everything_by_the_end(dpexp_home: Path, proxy: Proxy) -> None:
    driver = drive("finish", held=True, MLFLOW_TRACKING_URI=proxy.address)
    folder = dpexp_home / "runs" / driver.run_id
    wait_until((folder / LEDGER).exists, "an MLflow run")
    proxy.down()
    driver.record(50)
    wait_until((folder / LOG).exists, "a failed delivery")
    proxy.up()
    driver.record(50)
    assert driver.delivery()["complete"]
    assert driver.wait() == 0
    assert steps_of(proxy.address, driver.run_id) == list(range(150))


@pytest.mark.parametrize("fault", ["500", "hang", "reset"])
def test_a_server_that_fails_in_the_middle_of_a_run_costs_it_only_the_timeout(
    dpexp_home: Path, tmp_path: Path, proxy: Proxy, fault: str
) -> None:
    run = start(tmp_path, MLFLOW_TRACKING_URI=proxy.address)
    wait_until(lambda: any(dpexp_home.glob(f"runs/*/{LEDGER}")), "an MLflow run")
    (journal,) = dpexp_home.glob(f"runs/*/{JOURNAL}")
    proxy.fault = fault
    _, messages = wait(run)
    assert run.returncode == 3
    run_id = journal.parent.name
    assert f"runs.py sync {run_id}" in messages
    record = fold(journal)
    assert (record.status, len(record.steps["loss"])) == ("finished", STEPS)
    proxy.fault = ""
    synced = script("runs.py", "sync", MLFLOW_TRACKING_URI=proxy.address)
    assert synced.returncode == 0, synced.stderr
    assert losses(proxy.address, run_id) == record.steps["loss"]
    assert everything(proxy.address, run_id)["status"] == "FINISHED"


@pytest.mark.usefixtures("patient_client")
def test_the_experiment_and_the_login_of_mlflows_variables_are_used(proxy: Proxy) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    variables = {"MLFLOW_EXPERIMENT_NAME": "from mlflow", "MLFLOW_RUN_ID": "0" * 32}
    command = ("single", "--json", "--track-timeout", TIMEOUT_S)
    ran = script("run.py", *command, MLFLOW_TRACKING_URI=login, **variables)
    assert ran.returncode == 0, ran.stderr
    assert everything(proxy.address, json.loads(ran.stdout)["run_id"])["experiment"] == "from mlflow"
    assert b"Authorization: Basic " + base64.b64encode(b"me:hunter22") in proxy.received


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "away"])
@pytest.mark.usefixtures("patient_client")
def test_credentials_stay_out_of_files_messages_and_process_lists(
    dpexp_home: Path, proxy: Proxy, is_up: bool
) -> None:
    login = proxy.address.replace("http://", "http://me:hunter22@")
    if not is_up:
        proxy.down()
    driver = drive("finish", before=(), MLFLOW_TRACKING_URI=login, MLFLOW_TRACKING_TOKEN="token-of-mine")
    commands = Path(f"/proc/{driver.follower}/cmdline").read_bytes()
    delivery = str(driver.delivery())
    synced = script("runs.py", "sync", "last", MLFLOW_TRACKING_URI=login)
    texts = [commands, delivery.encode(), synced.stdout.encode(), synced.stderr.encode()]
    texts += [path.read_bytes() for path in dpexp_home.rglob("*") if path.is_file()]
    assert len(texts) > 7
    assert not [text for text in texts if b"hunter22" in text or b"token-of-mine" in text]


@pytest.mark.usefixtures("patient_client")
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
