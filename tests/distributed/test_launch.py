"""Launch: which options it refuses, from where it starts ranks, and how it reports that they cannot meet."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

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
from servers import free_port
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.utils import _PeriodicTimer

from dpexp.config.strategy_options import LaunchOptions
from dpexp.distributed import launch
from dpexp.distributed.rank_results import RankResult
from dpexp.distributed.signals import Terminated

SHORT = ("--steps", "2", "--warmup", "0", "--phase-steps", "1", "--json")
MODEL = """
import atexit, os, torch
from pathlib import Path
from torch import nn
@atexit.register
def list_threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    if "RANK" in os.environ:
        Path(f"threads_of_rank_{os.environ['RANK']}").write_text("".join(names))
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


def check_no_thread_of_gloo(folder: Path) -> None:
    """Neither rank may have one when its interpreter ends: freeing a tensor then aborts the process."""
    for rank in range(2):
        threads = (folder / f"threads_of_rank_{rank}").read_text()
        assert "python" in threads
        assert "gloo" not in threads


@pytest.mark.usefixtures("temporary_folder")
def test_ranks_start_from_any_working_directory(hostile: Path) -> None:
    """``dpexp`` is found through the checkout, and the user's model through the working directory."""
    words = ("fsdp", "--devices", "2", "--model", "package/mine.py:make", *SHORT)
    found = record(wait(start(SCRIPT, *words, "--no-track", folder=hostile)))
    check_no_thread_of_gloo(hostile)
    assert found["verification"]["passed"] is True
    assert len(found["devices"]["ranks"]) == 2


@pytest.mark.usefixtures("temporary_folder")
def test_torchrun_starts_ranks_from_any_working_directory(hostile: Path) -> None:
    words = ("hybrid", "--model", "package.mine:embedding", "--host", "0", *SHORT, "--no-track")
    found = record(wait(start(*AGENT, "2", SCRIPT, *words, folder=hostile)))
    check_no_thread_of_gloo(hostile)
    assert found["verification"]["passed"] is True


def test_ranks_start_from_a_deleted_working_directory(tmp_path: Path, dpexp_home: Path) -> None:
    """The run, its uploader and its ranks: MKL alone would end each of them."""
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
    """The options of this run come from variables; launcher, ranks and uploader must not show one of them."""
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
    assert any("uploader_process" in line for line in lines.values())
    shown = [line for line in lines.values() for value in ("canary", model, str(dpexp_home)) if value in line]
    assert not shown


def test_ranks_of_several_hosts_refuse_a_missing_home(tmp_path: Path) -> None:
    """Only the first rank records: here the ranks find the error, and are not started again."""
    hosts = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    home = tmp_path / "gone" / "home"
    done = run("ddp", "--virtual", "2", *hosts, *SHORT, DPEXP_HOME=str(home))
    message = f"error: DPEXP_HOME {home}: {home.parent} is not a directory: make it, or correct DPEXP_HOME\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


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
    from dpexp.config.strategy_options import LaunchOptions
    from dpexp.distributed.launch import LAUNCH, _environment

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ)
    with _environment(LaunchOptions(), 2, str(tmp_path)):
        assert os.environ[LAUNCH]
        assert os.environ["OMP_NUM_THREADS"] == "3"
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--comm", "nccl"], ["--comm nccl", "CUDA"]),
        (["--nnodes", "2"], ["--nnodes 2", "--rdzv-endpoint HOST:PORT"]),
        (["--nnodes", "3:2"], ["--nnodes 3:2", "fewest:most"]),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "nowhere.invalid:29500"],
            ["'nowhere.invalid' cannot be resolved"],
        ),
        (["--nnodes", "2", "--rdzv-endpoint", "nohost"], ["--rdzv-endpoint 'nohost'", "10.0.0.1:29500"]),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_rank_starts(
    dpexp_home: Path, words: list[str], expected: list[str]
) -> None:
    done = run("ddp", "--devices", "2", *words)
    assert done.returncode == 2, done.stderr
    for word in expected:
        assert word in done.stderr
    assert not list(dpexp_home.iterdir())


def test_a_missing_host_ends_the_run_after_the_join_timeout() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    hosts = ("--nnodes", "2", "--rdzv-endpoint", endpoint, "--join-timeout", "3")
    done = run("ddp", "--devices", "1", *hosts)
    assert done.returncode == 1
    assert f"fewer than 2 hosts met at {endpoint} within 3 s" in done.stderr


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        done = run("ddp", "--devices", "1", "--nnodes", "2", "--rdzv-endpoint", endpoint)
    assert done.returncode == 1
    assert f"port of --rdzv-endpoint {endpoint} is in use on this host: choose another" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_watchdog_survives_a_child_that_ends_and_has_ended_when_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["true"])
    reaped = psutil.Process(child.pid)
    child.wait()
    rounds, is_second = list[str](), threading.Event()

    def read_slowly(folder: Path) -> list[RankResult]:
        rounds.append("begun")
        if len(rounds) > 2:
            is_second.set()
            time.sleep(0.2)  # while the ranks end
        rounds.append("ended")
        return [RankResult(0, "failed")]

    monkeypatch.setattr(psutil.Process, "children", lambda _: [reaped])
    monkeypatch.setattr(launch, "read_results", read_slowly)
    with launch._watchdog(LaunchOptions(nnodes="2", rdzv_endpoint="localhost:1"), tmp_path):
        assert is_second.wait(PATIENCE_S)
    assert rounds.count("begun") == rounds.count("ended")


class Rendezvous:
    """Of torchrun's, the timer: a thread that refers to it while it tells the others that this host lives."""

    def __init__(self) -> None:
        self.beats = 0
        self.is_left = threading.Event()
        self.timer = _PeriodicTimer(datetime.timedelta(milliseconds=1), self.beat, weakref.ref(self))
        self.timer.start()

    @staticmethod
    def beat(reference: weakref.ref[Rendezvous]) -> None:
        rendezvous = reference()
        if rendezvous is not None:
            rendezvous.beats += 1
            rendezvous.is_left.wait()


def test_a_signal_does_not_make_the_thread_of_the_rendezvous_wait_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Rendezvous]] = []

    def elastic_launch(*_: object) -> Any:
        def agent(*_: object) -> None:
            rendezvous = Rendezvous()
            made.append(weakref.ref(rendezvous))
            is_left.append(rendezvous.is_left)
            while not rendezvous.beats:
                time.sleep(0.001)
            raise SignalException("", signal.SIGTERM)

        return agent

    is_left: list[threading.Event] = []
    ignored: list[Any] = []
    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", elastic_launch)
    monkeypatch.setattr(launch, "_signals", [])
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    assert isinstance(launch._run_agent(None, LaunchOptions(), "", tmp_path), Terminated)
    is_left[0].set()
    while (rendezvous := made[0]()) is not None and rendezvous.beats < 3:
        del rendezvous
        time.sleep(0.001)
    assert rendezvous is not None
    rendezvous.timer.cancel()
    assert not ignored


def test_torchrun_and_devices_must_agree() -> None:
    done = torchrun(2, "ddp", "--devices", "3")
    assert done.returncode != 0
    assert "asks for 3 ranks a host and torchrun started 2" in done.stderr


def test_a_strategy_of_one_process_refuses_ranks() -> None:
    done = torchrun(2, "single")
    assert "single is one process, and this is rank" in done.stderr
