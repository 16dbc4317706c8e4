"""The MLflow UI, light: one server process on this machine's loopback, and none left behind.

A plain ``mlflow ui`` is 15 processes and 2 GB, because it also offers jobs; this is 2 processes and 0.4 GB.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import IO

from dpexp.config.child_processes import end_with_parent, python_path
from dpexp.record import redact
from dpexp.tracking.store import CLIENT_DEFAULTS, Store, without_login

START_S = 60.0
STOP_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""This machine is reached without a proxy."""


class ServerError(RuntimeError):
    """The server cannot run: why, and what to do."""


def links(base: str) -> list[tuple[str, str]]:
    """(experiment, link to its runs), the last used first; MLflow's empty Default only if it is alone."""
    body = json.dumps({"max_results": 20, "order_by": ["last_update_time DESC"]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base}/api/2.0/mlflow/experiments/search", body, headers)
    with _DIRECT.open(request, timeout=10) as answer:
        found = json.load(answer).get("experiments", [])
    used = [e for e in found if e["experiment_id"] != "0"] or found
    page = "runs?workflowType=machine_learning"
    return [(e["name"], f"{base}/#/experiments/{e['experiment_id']}/{page}") for e in used]


def remote_links(store: Store) -> list[tuple[str, str]] | None:
    """The same of a server that is running elsewhere, asked with the user's login; None for other stores."""
    if not store.uri.startswith(("http://", "https://")):
        return None
    store.open()
    base = without_login(store.uri).rstrip("/")
    found = store.client.search_experiments(order_by=["last_update_time DESC"], max_results=20)
    page = "runs?workflowType=machine_learning"
    return [(e.name, f"{base}/#/experiments/{e.experiment_id}/{page}") for e in found]


def ready(store: Store) -> None:
    """Check or make the store, in a process of its own: mlflow would stay in memory. Raises ServerError."""
    code = (
        "import sys; from pathlib import Path; from dpexp.tracking.store import Store, describe\n"
        "try: Store.of(Path(sys.argv[1])).open()\n"
        "except Exception as error: sys.exit(describe(error))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(store.home)],
        env=os.environ | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise ServerError(made.stderr.strip().splitlines()[-1])


def check_port(host: str, port: int) -> None:
    """Raises ServerError unless the port can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ServerError(
                f"port {port} of {host} cannot be used ({error.strerror}): give another --port, "
                f"such as {_free(host)}"
            ) from None


def _free(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host if host in ("127.0.0.1", "localhost") else "127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(store: Store, host: str, port: int) -> Iterator[str]:
    """A server that answers, for as long as the context lasts; gives its address. Raises ServerError.

    The store's address travels in the environment, where no process list shows it.
    """
    check_port(host, port)
    ready(store)
    environment = CLIENT_DEFAULTS | dict(os.environ)
    environment |= {
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": store.artifacts.as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--workers",
        "1",
        "--host",
        host,
        "--port",
        str(port),
    ]
    base = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),
        )
        try:
            _wait_until_up(process, base, log)
            yield base
            _watch(process, log)
        finally:
            _stop(process)


def _wait_until_up(process: subprocess.Popen[bytes], base: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the MLflow server ended while it started: {_last_line(log)}")
        with contextlib.suppress(OSError), _DIRECT.open(f"{base}/health", timeout=2):
            return
        time.sleep(0.1)
    raise ServerError(f"the MLflow server does not answer after {START_S:g} s: {_last_line(log)}")


def _watch(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Wait for the server, which ends only if something is wrong with it."""
    process.wait()
    raise ServerError(f"the MLflow server ended with code {process.returncode}: {_last_line(log)}")


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return redact(lines[-1]) if lines else "it said nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: its whole process group, by force if need be."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    process.wait()
