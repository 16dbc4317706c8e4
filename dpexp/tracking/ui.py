"""The MLflow UI, light: one server process on this machine's loopback, and none left behind.

A plain ``mlflow ui`` is 15 processes and 2 GB, because it also offers jobs; this is 2 processes and 0.4 GB.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from dpexp.tracking.errors import StoreError
from dpexp.tracking.store import CLIENT_DEFAULTS, Store, without_login

START_S = 60.0
STOP_S = 5.0


class ServerError(RuntimeError):
    """The server cannot run: why, and what to do."""


def links(store: Store, base: str) -> list[tuple[str, str]]:
    """(experiment, link to its runs), the last used first; MLflow's empty Default only if it is alone."""
    from mlflow.tracking import MlflowClient

    client: MlflowClient = store.client
    found = client.search_experiments(order_by=["last_update_time DESC"], max_results=20)
    used = [e for e in found if e.experiment_id != "0"] or found
    page = "runs?workflowType=machine_learning"
    return [(e.name, f"{base.rstrip('/')}/#/experiments/{e.experiment_id}/{page}") for e in used]


def remote_base(store: Store) -> str | None:
    """The address of a server that is running elsewhere; None for a store that needs one here."""
    return without_login(store.uri) if store.uri.startswith(("http://", "https://")) else None


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
def server(store: Store, host: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers, for as long as the context lasts. Raises ServerError.

    The store's address travels in the environment, where no process list shows it.
    """
    check_port(host, port)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    environment = CLIENT_DEFAULTS | dict(os.environ)
    environment |= {
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": store.artifacts.as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    try:
        _wait_until_up(process, f"http://{_reachable(host)}:{port}/health")
        yield process
    finally:
        _stop(process)


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "") else host


def _wait_until_up(process: subprocess.Popen[bytes], health: str) -> None:
    deadline = time.monotonic() + START_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError("the MLflow server ended while it started: its own message is above")
        with contextlib.suppress(urllib.error.URLError, OSError), direct.open(health, timeout=2):
            return
        time.sleep(0.1)
    raise ServerError(f"the MLflow server does not answer after {START_S:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: its whole process group, by force if need be."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    process.wait()


__all__ = ["ServerError", "StoreError", "check_port", "links", "remote_base", "server"]
