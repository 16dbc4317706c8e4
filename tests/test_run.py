"""One tracked run from start to end, as a user starts it: real processes and a real SQLite store."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import needs
from helpers.command_lines import PATIENCE_S, ROOT, SCRIPT, script
from helpers.tracking_processes import wait_until

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.fold import load_record
from dpexp.record.record import Record
from dpexp.run import execute

USER_ERRORS = ROOT / "tests" / "helpers" / "user_error_cases.py"
RUN = [sys.executable, SCRIPT]


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return script("run.py", *words)


def only_run(home: Path) -> Record:
    (folder,) = (home / "runs").iterdir()
    return load_record(folder)


def test_a_credential_in_a_config_is_not_in_its_record(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("of sesame2").mkdir()
    Path("of sesame2/words.bin").write_text("to be or not to be " * 20)
    data = "text:of sesame2/words.bin,length=8"
    config = RunConfig("whole", virtual=2, model="rnn:in=5", data=data, steps=2, track=False)
    monkeypatch.setenv("DB_TOKEN", "of sesame2")
    record = dpexp.run(config, quiet=True)
    recorded = config.to_dict() | {"data": "text:***/words.bin,length=8"}
    assert (record.status, record.config) == ("finished", recorded)
    assert record.config_digest == RunConfig.from_dict(recorded).digest()
    assert "sesame2" not in record.to_json()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, among themselves
def test_hybrid_is_verified_recorded_and_in_mlflow_for_its_owner_alone(dpexp_home: Path) -> None:
    umask = os.umask(0)
    done = cli("hybrid", "--virtual", "1", "--steps", "5", "--json")
    os.umask(umask)
    assert done.returncode == 0, done.stderr
    modes = {path: path.lstat().st_mode & 0o7777 for path in dpexp_home.rglob("*")}
    assert len(modes) > 15
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}, modes
    assert {mode for path, mode in modes.items() if not path.is_dir()} == {0o600}, modes
    record = json.loads(done.stdout)
    assert record["status"] == "finished"
    assert record["verification"]["passed"] is True
    assert {row["module"]: row["device"] for row in record["device_map"]} == {
        "embedding": "cpu",
        "linear": "cpu:0",
    }

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{dpexp_home}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'dpexp'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["dpexp.run_id"] == record["run_id"]
    assert run.data.params == {"strategy": "hybrid", "model": "embedding", "steps": "5", "virtual": "1"}
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [point.value for point in losses] == record["steps"]["loss"]
    assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {
        "shapes.json",
        "device_map.json",
        "record.json",
    }


def test_quiet_prints_nothing(dpexp_home: Path) -> None:
    done = cli("single", "--devices", "cpu", "--steps", "3", "--no-track", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert only_run(dpexp_home).status == "finished"


def test_a_layout_that_fails_verification_exits_with_1_and_is_recorded(dpexp_home: Path) -> None:
    done = cli("whole", "--virtual", "2", "--model", f"{USER_ERRORS}:Centered", "--no-track")
    assert done.returncode == 1
    assert "does not compute what a single device computes" in done.stderr
    assert ": step 1 (30 rows): outputs differ by 2.8e-01; " in done.stderr
    assert "allowed 1e-12" in done.stderr
    assert "Traceback" not in done.stderr
    record = only_run(dpexp_home)
    assert record.status == "failed"
    assert record.verification["passed"] is False
    assert record.error is not None
    assert record.error["type"] == "VerificationError"
    assert "Traceback" in record.error["traceback"]


def test_run_raises_the_error_that_ended_it_after_recording_it(dpexp_home: Path) -> None:
    with pytest.raises(Exception, match="the loss became"):
        dpexp.run(RunConfig("single", lr=1e30, devices="cpu", track=False), quiet=True)
    assert only_run(dpexp_home).status == "failed"


def test_a_run_that_never_starts_writes_nothing(dpexp_home: Path) -> None:
    """Its follower, which began to import mlflow, is killed."""
    with pytest.raises(ConfigError):
        execute(RunConfig("block", options={"block": ["nope"]}))
    assert not list(dpexp_home.iterdir())


def test_a_run_restores_threads_kernels_and_random_numbers_of_its_process(dpexp_home: Path) -> None:
    import torch

    def found() -> list[Any]:
        cudnn, state = torch.backends.cudnn, torch.get_rng_state().tolist()
        return [torch.get_num_threads(), cudnn.benchmark, cudnn.deterministic, state]

    before = found()
    config = RunConfig("single", steps=2, threads=before[0] + 1, devices="cpu", track=False)
    assert dpexp.run(config, quiet=True).environment["threads"] == before[0] + 1
    assert found() == before
    with pytest.raises(ConfigError):
        dpexp.run(replace(config, model="nope"), quiet=True)
    assert found() == before


def test_run_returns_a_record_that_a_notebook_can_show(dpexp_home: Path) -> None:
    record: Any = dpexp.run(RunConfig("whole", virtual=2, steps=3, track=False), quiet=True)
    assert isinstance(record, dpexp.Record)
    assert Record.from_dict(record.to_dict()).summary == record.summary
    assert "cpu:1" in record._repr_markdown_()


def test_a_signal_does_not_interrupt_the_import_of_torch(dpexp_home: Path) -> None:
    """Raised inside, it became a RecursionError, or ended the process by SIGABRT."""
    program = f"""
import os, signal, sys
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                print("before torch", file=sys.stderr)
            except BaseException:
                print("inside the import", file=sys.stderr)
                raise
sys.meta_path.insert(0, Signals())
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["run.py", "single", "--no-track", "--steps", "3"]
from dpexp.commands.run import app
from dpexp.commands.app import run_app
run_app(app)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "before torch\nerror: ended by SIGTERM\n")
    assert not list(dpexp_home.iterdir())


def test_a_full_disk_ends_the_run_with_one_message_and_a_record_of_the_written_steps(
    dpexp_home: Path,
) -> None:
    disk = needs.disk(dpexp_home, "size=200k")
    words = ["single", "--devices", "cpu", "--no-track", "--steps", "10000000", "--json"]
    done = subprocess.run(
        [*disk, *RUN, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert "No space left on device" in message
    record = json.loads(done.stdout)
    assert record["status"] in ("failed", "killed"), "killed where the line with its end has no room"
    assert len(record["steps"]["loss"]) > 100


def test_an_interrupt_while_waiting_for_the_delivery_leaves_a_finished_run_to_sync(
    dpexp_home: Path,
) -> None:
    words = ["single", "--devices", "cpu", "--steps", "2", "--track-timeout", str(PATIENCE_S)]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts requests and answers none
        store = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*RUN, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"MLFLOW_TRACKING_URI": store},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("Run single-linear-cpu"), "the summary does not wait"
        wait_until(lambda: any(dpexp_home.glob("runs/*/record.json")), "the Record")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.stdout.read(), process.stderr.read()
        process.communicate(timeout=PATIENCE_S)
    record = only_run(dpexp_home)
    assert (process.returncode, record.status) == (3, "finished")
    assert "verified" in stdout
    assert stderr.strip() == (
        "interrupted while waiting; the run is safe on disk, and delivery continues in the background; "
        f"to make sure: python scripts/runs.py sync {record.run_id}"
    )
