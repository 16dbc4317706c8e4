"""Launch: which options it refuses, from where it starts ranks, and how it reports that they cannot meet."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
from launching import SCRIPT, free_port, record, run, start, torchrun, until_step, wait, words

SHORT = ("--steps", "2", "--warmup", "0", "--phase-steps", "1", "--json")
MODEL = """
import torch
from torch import nn
class Model(nn.Linear):
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
def make():
    return Model(5, 2)
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_start_from_any_working_directory(tmp_path: Path, strategy: str) -> None:
    """``dpexp`` is found through the checkout, and a model's file through the working directory."""
    (tmp_path / "mine.py").write_text(MODEL)
    words = (strategy, "--devices", "2", "--model", "mine.py:make", *SHORT)
    found = record(wait(start(SCRIPT, *words, "--no-track", folder=tmp_path)))
    assert found["verification"]["passed"] is True
    assert len(found["devices"]["ranks"]) == 2


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


def test_a_launch_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpexp.config import LaunchOptions
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
    assert done.returncode == 2, done.stderr[-3000:]
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


def test_torchrun_and_devices_must_agree() -> None:
    done = torchrun(2, "ddp", "--devices", "3")
    assert done.returncode != 0
    assert "asks for 3 ranks a host and torchrun started 2" in done.stderr


def test_a_strategy_of_one_process_refuses_ranks() -> None:
    done = torchrun(2, "single")
    assert "single is one process, and this is rank" in done.stderr
