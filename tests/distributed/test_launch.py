"""Launch: which options it refuses, from where it starts ranks, and how signals end them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import (
    AGENT,
    ENVIRONMENT,
    PATIENCE_S,
    SCRIPT,
    record,
    run,
    start,
    start_forked,
    torchrun,
    until_step,
    wait,
    words,
)

from dpexp.distributed.launch import LAUNCH, _environment

SHORT = ("--steps", "2", "--warmup", "0", "--phase-steps", "1", "--json")
MODEL = """
import torch
from torch import nn
class Model(nn.Linear):
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
def make():
    return Model(5, 2)
class Embedded(nn.Sequential):
    def example(self, samples, generator):
        return torch.randint(50, (samples,), generator=generator), torch.zeros(samples, 2)
def embedding():
    return Embedded(nn.Embedding(50, 5), nn.Linear(5, 2))
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a user's package, and with names of ours and of libraries that break imports."""
    folder = tmp_path / "hostile"
    for name in ("dpexp", "scripts", "torch", "mlflow", "typer"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('{name} of the working directory')")
    for name in ("random", "json", "run", "conftest"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} of the working directory')")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "mine.py").write_text(MODEL)
    return folder


@pytest.mark.usefixtures("temporary_folder")
def test_ranks_start_from_any_working_directory(hostile: Path) -> None:
    """``dpexp`` is found through the checkout, and the user's model through the working directory."""
    words = ("fsdp", "--devices", "2", "--model", "package/mine.py:make", *SHORT)
    found = record(wait(start(SCRIPT, *words, "--no-track", folder=hostile)))
    assert found["verification"]["passed"] is True
    assert len(found["devices"]["ranks"]) == 2


@pytest.mark.usefixtures("temporary_folder")
def test_torchrun_starts_ranks_from_any_working_directory(hostile: Path) -> None:
    words = ("hybrid", "--model", "package.mine:embedding", "--host", "0", *SHORT, "--no-track")
    found = record(wait(start(*AGENT, "2", SCRIPT, *words, folder=hostile)))
    assert found["verification"]["passed"] is True


def test_ranks_start_from_a_deleted_working_directory(tmp_path: Path, dpexp_home: Path) -> None:
    """The run, its follower and its ranks: MKL alone would end each of them."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'cd "$0" && rmdir "$0" && exec "$@"'
    patient = ("--track-timeout", str(PATIENCE_S))
    words = (sys.executable, SCRIPT, "ddp", "--devices", "2", *patient, *SHORT)
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(
        ["sh", "-c", command, str(gone), *words], capture_output=True, text=True, env=environment, check=False
    )
    assert record(done)["verification"]["passed"] is True
    assert "warning: the working directory was deleted" in done.stderr
    relative = environment | {"DPEXP_HOME": "home"}
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", command, str(gone), *words], capture_output=True, text=True, env=relative, check=False
    )
    assert done.returncode == 2
    assert "DPEXP_HOME home: the working directory was deleted" in done.stderr


def test_no_process_of_a_run_shows_the_environment_in_its_command_line(
    dpexp_home: Path, tmp_path: Path
) -> None:
    """The options of this run come from variables; launcher, ranks and follower must not show one of them."""
    strategy, _, model, *rest = words(tmp_path, steps=400)
    secrets = {
        "DB_PASSWORD": "canary-password",
        "DPEXP_MODEL": model,
        "DPEXP_RUN_NAME": "canary-name",
        "MLFLOW_TRACKING_URI": f"sqlite:///{dpexp_home}/canary.db",
    }
    run = start(SCRIPT, strategy, "--devices", "2", *rest, **secrets)
    until_step(dpexp_home, 5, run)
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    lines = {process.pid: " ".join(process.cmdline()) for process in processes}
    run.terminate()
    wait(run)
    assert sum("run_rank" in line for line in lines.values()) == 2
    assert any("dpexp.tracking.follower" in line for line in lines.values())
    shown = [line for line in lines.values() for value in ("canary", model, str(dpexp_home)) if value in line]
    assert not shown


def test_torchruns_ranks_refuse_a_missing_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPEXP_HOME", str(tmp_path / "gone" / "home"))
    done = torchrun(2, "ddp", *SHORT)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/gone is not a directory" in done.stderr
    assert "exitcode  : 2 " in done.stderr
    assert "JournalError(" not in done.stderr


def test_two_signals_end_the_ranks_with_one_message(dpexp_home: Path, tmp_path: Path) -> None:
    process = start_forked(SCRIPT, *words(tmp_path), "--devices", "2", "--no-track")
    until_step(dpexp_home, 1, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    ended = wait(process)
    message = {130: "interrupted; what was measured is recorded", 143: "ended by SIGTERM"}[ended.returncode]
    assert ended.stderr == f"error: {message}\n"
    (folder,) = (dpexp_home / "runs").iterdir()
    ended_record = json.loads((folder / "record.json").read_bytes())
    assert (ended_record["status"], ended_record["damage"]) == ("killed", [])


STARTING = """
import os, socket
from torch import nn
def make(port):
    if "RANK" in os.environ:
        with socket.create_connection(("127.0.0.1", port)) as test:
            test.recv(1)
    return nn.Linear(5, 2)
"""


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_a_signal_before_the_ranks_have_a_run_has_its_exit_code(
    dpexp_home: Path, tmp_path: Path, number: signal.Signals, code: int, message: str
) -> None:
    (tmp_path / "starting.py").write_text(STARTING)
    with socket.create_server(("127.0.0.1", 0)) as test:
        test.settimeout(PATIENCE_S)
        model = f"starting.py:make:port={test.getsockname()[1]}"
        command = (SCRIPT, "ddp", "--devices", "2", "--model", model, "--no-check", "--no-track")
        process = start_forked(*command, folder=tmp_path)
        ranks = [test.accept()[0] for _ in range(2)]
        process.send_signal(number)
        ended = wait(process)
        for rank in ranks:
            rank.close()
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"error: {message}\n")
    assert not list(dpexp_home.iterdir())


def test_a_launch_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ)
    with _environment(2, str(tmp_path)):
        assert os.environ[LAUNCH]
        assert os.environ["OMP_NUM_THREADS"] == "3"
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM"
    assert dict(os.environ) == before


def test_a_backend_without_its_device_is_refused_before_a_rank_starts(dpexp_home: Path) -> None:
    done = run("ddp", "--devices", "2", "--comm", "nccl")
    assert done.returncode == 2
    assert "--comm nccl needs a CUDA device for each rank" in done.stderr
    assert not list(dpexp_home.iterdir())


def test_torchrun_and_devices_must_agree() -> None:
    done = torchrun(2, "ddp", "--devices", "3")
    assert done.returncode != 0
    assert "asks for 3 ranks a host and torchrun started 2" in done.stderr


def test_a_strategy_of_one_process_refuses_ranks() -> None:
    done = torchrun(2, "single")
    assert "single is one process, and this is rank" in done.stderr
