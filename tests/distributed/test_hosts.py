"""Two hosts of two ranks each: network namespaces of this machine, joined by a link."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from command_lines import PATIENCE_S
from launching import SCRIPT, ranks_of, record, run, until_step, wait, words
from namespaces import Host

ENDPOINT = f"{namespaces.NET}.1:29531"  # a fixed port, in a network of its own
LOST_CONTACT = "lost contact with rank 2 on host b, rank 3 on host b"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    if not namespaces.available():
        pytest.skip("this process cannot create network namespaces: that takes root and iproute2")
    with namespaces.two_hosts(tmp_path / "hosts") as both:
        yield both


def start(
    host: Host, folder: Path, *options: str, nnodes: str = "2", steps: int = 60
) -> subprocess.Popen[str]:
    hosts = ("--nnodes", nnodes, "--rdzv-endpoint", ENDPOINT, "--join-timeout", str(PATIENCE_S), "--no-track")
    return host.start(SCRIPT, *words(folder, steps=steps), "--devices", "2", *hosts, *options)


def launcher(process: subprocess.Popen[str]) -> int:
    """The process id of scripts/run.py: ``ip`` and ``unshare`` replace themselves by it."""
    return process.pid


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
    os.kill(launcher(second), signal.SIGKILL)
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
    a, b = hosts
    first, second = (start(host, tmp_path, nnodes="1:2") for host in (a, b))
    until_step(a.home, 12, first)
    os.kill(launcher(second), signal.SIGKILL)
    wait(second)
    found = record(wait(first))
    assert len(found["devices"]["ranks"]) == 2
    assert found["steps"]["samples"] == [30, 30, 30, 10] * 15
