"""The MLflow UI: one server process on this machine's loopback, which ends with the process that starts it.

A plain ``mlflow ui`` is 15 processes and 2 GB, because it also offers jobs; this is 2 processes and 0.4 GB.
"""

import contextlib
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

from dpexp.config.printable import printable_line
from dpexp.config.process import end_with_parent
from dpexp.record.files import PRIVATE_UMASK
from dpexp.record.redact import redact
from dpexp.tracking.content import VIEW, VIEW_TAG
from dpexp.tracking.store import CLIENT_DEFAULTS, Store, StoreError

OPEN_BY_DEFAULT = ("localhost", "127.0.0.1", "0.0.0.0")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
DEFAULT_EXPERIMENT = "0"  # which every store of MLflow has, used or not
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def links(store: Store, base: str) -> list[tuple[str, str]]:
    """(experiment, link to its runs at this address), the last used first; Default where it is alone.

    The link opens dpexp's view of the list, where the experiment has it.
    """
    found = store.client.search_experiments(max_results=20, order_by=["last_update_time DESC"])
    used = [each for each in found if each.experiment_id != DEFAULT_EXPERIMENT] or found
    views = [f"&viewStateShareKey={VIEW}" if VIEW_TAG in each.tags else "" for each in used]
    return [
        (each.name, f"{base}/#/experiments/{each.experiment_id}/runs?workflowType=machine_learning{view}")
        for each, view in zip(used, views, strict=True)
    ]


@contextlib.contextmanager
def server(store: Store, host: str, port: int) -> Iterator[str]:
    """A server that answers while the context lasts; yields its address. Raises StoreError.

    The store's address is passed in the environment, where no process list shows it.
    """
    try:
        socket.create_server((host, port)).close()  # on a port in use MLflow itself would exit with code 0
    except OSError as error:
        where, reason = f"port {port} of {printable_line(host)}", str(error.strerror or error)
        raise StoreError(
            f"{where} cannot be used ({reason.partition(' (')[0]}): choose another --port or --host"
        ) from None
    store.open()
    environment = CLIENT_DEFAULTS | os.environ
    environment |= {"MLFLOW_BACKEND_STORE_URI": store.uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment["MLFLOW_DEFAULT_ARTIFACT_ROOT"] = store.artifacts.as_uri()
    environment.pop("MLFLOW_TRACKING_URI", None)
    if host not in OPEN_BY_DEFAULT:  # MLflow answers other addresses than these and private ones with 403
        environment.setdefault("MLFLOW_SERVER_ALLOWED_HOSTS", f"{host}:{port}")
        environment.setdefault("MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", f"http://{host}:{port}")
    arguments = ["--workers", "1", "--host", host, "--port", str(port)]
    base = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mlflow", "server", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=PRIVATE_UMASK,
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
        )
        try:
            _wait_until_up(process, base, log)
            yield base
            process.wait()  # the server ends only if something is wrong
            raise StoreError(f"the MLflow server ended with code {process.returncode}: {_last_line(log)}")
        finally:
            _stop(process)


def _wait_until_up(process: subprocess.Popen[bytes], base: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), _WITHOUT_PROXY.open(f"{base}/health", timeout=2):
            return
        time.sleep(0.1)
    raise StoreError(f"the MLflow server does not answer: {_last_line(log)}")


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return redact(lines[-1]) if lines else "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: its whole process group, by force if necessary."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
