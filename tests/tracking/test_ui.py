"""``scripts/ui.py``: one server on loopback, links to the runs, and no process left behind."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import journals
import psutil
import pytest
from command_lines import ROOT, script
from servers import free_port
from tracking_processes import TIMEOUT_S, wait_until_gone


@pytest.fixture
def served(
    home_with_store: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The UI on one delivered run, on loopback or a parameter's host: its process, port, and first line."""
    journals.complete(home_with_store / "runs", "shown")
    assert script("runs.py", "sync").returncode == 0
    port = free_port()
    command = [sys.executable, str(ROOT / "scripts" / "ui.py"), "--port", str(port)]
    command += ["--host", request.param] if hasattr(request, "param") else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, port, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("temporary_folder")
def test_the_ui_serves_its_link_on_loopback_and_ends_with_all_processes(
    served: tuple[subprocess.Popen[str], int, str],
) -> None:
    process, port, line = served
    query = "workflowType=machine_learning"
    assert line == f"dpexp: http://127.0.0.1:{port}/#/experiments/1/runs?{query}\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=TIMEOUT_S) as page:
        assert page.status == 200
    as_remote = script("ui.py", MLFLOW_TRACKING_URI=f"http://me:hunter22@127.0.0.1:{port}")
    assert (as_remote.returncode, as_remote.stdout) == (0, line), (
        "of a remote server it prints the links only"
    )
    children = psutil.Process(process.pid).children(recursive=True)
    listening = [
        c.laddr for child in children for c in child.net_connections() if c.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert len(children) <= 2
    busy = script("ui.py", "--port", port)
    assert busy.returncode == 1
    assert f"error: port {port} of 127.0.0.1 cannot be used (Address already in use)" in busy.stderr
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert err == "Press Ctrl-C to stop.\n"
    for child in children:
        wait_until_gone(child.pid)


@pytest.mark.parametrize("served", ["127.0.0.2"], indirect=True)
def test_a_killed_ui_of_another_host_leaves_no_server(
    served: tuple[subprocess.Popen[str], int, str],
) -> None:
    process, port, line = served
    assert line.startswith(f"dpexp: http://127.0.0.2:{port}/")
    with urllib.request.urlopen(f"http://127.0.0.2:{port}/", timeout=TIMEOUT_S) as page:
        assert page.status == 200
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    for child in children:
        wait_until_gone(child.pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_a_store_or_server_that_cannot_be_used_is_reported_in_one_line(dpexp_home: Path) -> None:
    (dpexp_home / "mlflow.db").write_bytes(os.urandom(4096))
    port = free_port()
    refused = script("ui.py", "--port", port)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "it is not an SQLite file" in refused.stderr
    away = script("ui.py", MLFLOW_TRACKING_URI=f"http://me:hunter22@127.0.0.1:{port}")
    assert away.returncode == 1
    message = f"error: the server http://***@127.0.0.1:{port} cannot be used: connection refused\n"
    assert away.stderr == message
