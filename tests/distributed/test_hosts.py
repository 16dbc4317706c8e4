"""Two hosts of two ranks each: network namespaces of this machine, joined by a link."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from command_lines import PATIENCE_S, Command
from launching import SCRIPT, ranks_of, record, run, until_step, wait, words
from mlflow_reader import history, only_run
from namespaces import Host
from tracking_processes import wait_until

PORT = 29531  # a fixed port, in a network of its own
WAITING = """
import atexit, os, platform, signal, time, torch
from pathlib import Path
from torch import nn
joined = Path(__file__).with_name("joined")
calls, is_stopped = 0, False
class Waiting(nn.Linear):
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
    def forward(self, x):
        global calls
        calls += 1
        while calls > 20 and not is_stopped and (platform.node() == "a" or not joined.exists()):
            time.sleep(0.02)
        return super().forward(x)
def make():
    handle = signal.getsignal(signal.SIGTERM)
    def stop(number, frame):
        global is_stopped
        is_stopped = True
        handle(number, frame)
    @atexit.register
    def wait():
        if os.environ.get("RANK") == "0" and os.environ["WORLD_SIZE"] == "2" and not is_stopped:
            joined.with_name("ended").touch()
            if joined.with_name("holds").exists():
                signal.pause()
    if "RANK" in os.environ:
        signal.signal(signal.SIGTERM, stop)
        if platform.node() == "a":
            joined.touch()
    return Waiting(5, 2)
"""
"""The ranks of host a, and those of b while it is alone, take some steps and then wait for SIGTERM.

So does the first rank of b alone at its end, if a file ``holds`` is beside it.
"""
EXIT_BARRIER_S = 300
"""How long a launcher of torchrun whose ranks have ended waits for the launchers of the others."""
LOST_CONTACT = "lost contact with rank 2 on host b, rank 3 on host b"


@pytest.fixture(scope="module")
def linked_hosts() -> Iterator[tuple[Host, Host]]:
    if not namespaces.available():
        pytest.skip("this process cannot create network namespaces: that takes root and iproute2")
    with namespaces.two_hosts() as both:
        yield both


@pytest.fixture
def hosts(linked_hosts: tuple[Host, Host], tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    for host in linked_hosts:
        host.home = tmp_path / host.name
        host.home.mkdir()
        host.connect()
    yield linked_hosts
    for host in linked_hosts:
        host.end_commands()


def start(
    host: Host, folder: Path, *options: str, nnodes: str = "2", steps: int = 60, head: int = 1
) -> Command:
    endpoint = f"{namespaces.NET}.{head}:{PORT}"
    hosts = ("--nnodes", nnodes, "--rdzv-endpoint", endpoint, "--join-timeout", str(PATIENCE_S), "--no-track")
    return host.start(SCRIPT, *words(folder, steps=steps), "--devices", "2", *hosts, *options)


def until_exists(path: Path, process: Command) -> None:
    """Wait for a file that a process of the run writes."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


def test_two_hosts_compute_what_one_host_of_four_ranks_computes_even_if_a_rank_is_killed(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    a, b = hosts
    first, second = start(a, tmp_path), start(b, tmp_path)
    until_step(a.home, 12, first)
    os.kill(ranks_of(second)[3], signal.SIGKILL)
    found = record(wait(first))
    assert wait(second).returncode == 0
    assert [(rank["rank"], rank["host"]) for rank in found["devices"]["ranks"]] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    together = record(run(*words(tmp_path, steps=60), "--devices", "4"))
    assert found["digest"]["weights"] == together["digest"]["weights"]
    assert found["steps"]["loss"] == together["steps"]["loss"]


def test_a_lost_host_is_named_long_before_the_timeout(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    a, b = hosts
    options = ("--max-restarts", "0", "--comm-timeout", "3600")
    first, second = (start(host, tmp_path, *options, steps=2000) for host in (a, b))
    until_step(a.home, 12, first)
    second.kill()
    wait(second)
    done = wait(first)
    assert done.returncode == 1
    assert LOST_CONTACT in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cut_link_is_noticed_within_the_timeout(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    a, b = hosts
    options = ("--max-restarts", "0", "--comm-timeout", "10")
    first, second = (start(host, tmp_path, *options, steps=2000) for host in (a, b))
    until_step(a.home, 12, first)
    b.cut()
    done, other = wait(first), wait(second)
    assert (done.returncode, other.returncode) == (1, 1)
    assert LOST_CONTACT in done.stderr
    assert "rank 0 on host a" in other.stderr


def test_the_other_host_continues_without_a_lost_one(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    a, head = hosts
    (tmp_path / "waiting.py").write_text(WAITING)
    options = ("--model", f"{tmp_path}/waiting.py:make")
    first, second = (start(host, tmp_path, *options, nnodes="1:2", head=2) for host in (head, a))
    while len(until_step(head.home, 10, first).devices["ranks"]) != 4:
        time.sleep(0.05)
    second.kill()
    wait(second)
    found = record(wait(first))
    assert len(found["devices"]["ranks"]) == 2
    assert found["steps"]["samples"] == [30, 30, 30, 10] * 15


def test_a_terminated_host_ends_the_run_of_both(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = (start(host, tmp_path, steps=2000) for host in hosts)
    until_step(hosts[0].home, 12, first)
    second.send_signal(signal.SIGTERM)
    done, other = wait(first, timeout=EXIT_BARRIER_S - 50), wait(second)
    assert (done.returncode, done.stderr) == (143, "error: ended by SIGTERM\n")
    assert (other.returncode, other.stderr) == (143, "error: ended by SIGTERM\n")
    assert json.loads(done.stdout)["status"] == "killed"


@pytest.mark.filterwarnings("default")  # SQLAlchemy warns of MLflow
def test_a_host_may_join_a_run_until_it_has_ended_and_leave_it(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """The head has the address that sorts last, and keeps the first rank and the journal."""
    a, head = hosts
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "holds").touch()
    options = ("--model", f"{tmp_path}/waiting.py:make", "--track", "--max-restarts", "1")
    first = start(head, tmp_path, *options, nnodes="1:2", head=2)
    alone = until_step(head.home, 10, first)
    second = start(a, tmp_path, *options, nnodes="1:2", head=2)
    both = until_step(head.home, 25, first)
    second.send_signal(signal.SIGTERM)
    left = wait(second)
    assert (left.returncode, left.stdout) == (143, ""), left.stderr
    until_exists(tmp_path / "ended", first)
    late = wait(start(a, tmp_path, *options, nnodes="1:2", head=2))
    assert (late.returncode, late.stdout) == (2, "")
    assert "rank 0 on host b: ConfigError: the run has ended" in late.stderr
    ended = wait(first)
    assert ended.returncode in (0, 3), ended.stderr  # 3: its uploader is still at work
    found = json.loads(ended.stdout)
    worlds = [
        [rank["host"] for rank in each["ranks"]] for each in (alone.devices, both.devices, found["devices"])
    ]
    assert worlds == [["b", "b"], ["b", "b", "a", "a"], ["b", "b"]]
    assert (found["run_id"], found["status"], found["error"]) == (alone.run_id, "finished", None)
    assert found["steps"]["loss"][:25] == both.steps["loss"][:25]
    assert found["steps"]["samples"] == [30, 30, 30, 10] * 15
    uri = f"sqlite:///{head.home}/mlflow.db"
    wait_until(lambda: only_run(uri, alone.run_id).info.status == "FINISHED", "delivered")
    stored = only_run(uri, alone.run_id)
    assert {step for step, *_ in history(uri, stored.info.run_id, "loss")} == set(range(60))
    assert not list(a.home.glob("runs/*"))
