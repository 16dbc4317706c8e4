"""The MLflow UI: one server process on this machine's loopback, which ends with the process that starts it.

A plain ``mlflow ui`` is 15 processes and 2 GB, because it also offers jobs; this is 2 processes and 0.4 GB.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any

from dpexp.config.printable import printable_line
from dpexp.config.process import end_with_parent, python_path
from dpexp.record.files import PRIVATE_UMASK
from dpexp.record.redact import redact
from dpexp.tracking.content import view
from dpexp.tracking.store.store import CLIENT_DEFAULTS, Store, without_login

OPEN_STORE = (
    "import sys; from dpexp.config.process import home\n"
    "from dpexp.tracking.store.store import Store, short_message\n"
    "try: Store.from_environment(home()).open()\n"
    "except Exception as error: sys.exit(short_message(error))"
)
_ABOUT_THE_PORT = (errno.EADDRINUSE, errno.EACCES)
OPEN_BY_DEFAULT = ("localhost", "127.0.0.1", "0.0.0.0")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
DEFAULT_EXPERIMENT = "0"  # which every store of MLflow has, used or not
_NEWEST: dict[str, Any] = {"max_results": 20, "order_by": ["last_update_time DESC"]}
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(RuntimeError):
    """The server cannot run: why, and what to do."""


def links(base: str) -> list[tuple[str, str]]:
    """(experiment, link to its runs), the last used first; MLflow's Default only if there is no other."""
    url, headers = f"{base}/api/2.0/mlflow/experiments/search", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(_NEWEST).encode(), headers)
    with _WITHOUT_PROXY.open(request, timeout=10) as response:
        experiments = json.load(response).get("experiments", [])
    found = {each["experiment_id"]: each for each in experiments}
    tags = {number: {tag["key"] for tag in each.get("tags", [])} for number, each in found.items()}
    return _links(base, {number: each["name"] for number, each in found.items()}, tags)


def remote_links(store: Store) -> list[tuple[str, str]] | None:
    """The links of a server that runs elsewhere, queried with the user's login; None for other stores."""
    if not store.is_http:
        return None
    base, experiments = without_login(store.uri), store.client.search_experiments(**_NEWEST)
    named = {each.experiment_id: each.name for each in experiments}
    return _links(base, named, {each.experiment_id: each.tags for each in experiments})


def _links(base: str, names: Mapping[str, str], tags: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """The links to experiments, by id, with the columns of dpexp's view where the tags have it."""
    used = [number for number in names if number != DEFAULT_EXPERIMENT] or names
    views = {n: f"&viewStateShareKey={view.VIEW}" if view.VIEW_TAG in tags[n] else "" for n in used}
    return [
        (names[n], f"{base}/#/experiments/{n}/runs?workflowType=machine_learning{views[n]}") for n in used
    ]


@contextlib.contextmanager
def server(store: Store, host: str, port: int) -> Iterator[str]:
    """A server that answers while the context lasts; yields its address. Raises ServerError.

    The store's address is passed in the environment, where no process list shows it.
    """
    _check_address(host, port)
    _open_in_child(store)
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
            raise ServerError(f"the MLflow server ended with code {process.returncode}: {_last_line(log)}")
        finally:
            _stop(process)


def _check_address(host: str, port: int) -> None:
    """Raises ServerError unless the port of the host is free: MLflow itself would exit with code 0."""
    named = printable_line(host)
    if not host:  # the system takes it for 0.0.0.0
        raise ServerError("--host is empty: give a name or an IPv4 address of this machine")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, TypeError) as error:  # a TypeError of a host that cannot be a name
            reason = getattr(error, "strerror", None) or error
            if getattr(error, "errno", None) in _ABOUT_THE_PORT:
                raise ServerError(
                    f"port {port} of {named} cannot be used ({reason}): choose another --port"
                ) from None
            raise ServerError(
                f"host {named} cannot be used ({reason}): give a name or an IPv4 address of this machine"
            ) from None


def _open_in_child(store: Store) -> None:
    """Open the store in a child process, because mlflow would stay in memory here. Raises ServerError."""
    environment = os.environ | {"DPEXP_HOME": str(store.home), "PYTHONPATH": python_path()}
    command = [sys.executable, "-P", "-c", OPEN_STORE]
    child = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, umask=PRIVATE_UMASK
    )
    if child.returncode:
        raise ServerError(child.stderr.strip().splitlines()[-1])


def _wait_until_up(process: subprocess.Popen[bytes], base: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the MLflow server ended while it started: {_last_line(log)}")
        with contextlib.suppress(OSError), _WITHOUT_PROXY.open(f"{base}/health", timeout=2):
            return
        time.sleep(0.1)
    raise ServerError(f"the MLflow server does not answer after {START_TIMEOUT_S:g} s: {_last_line(log)}")


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
    process.wait()
