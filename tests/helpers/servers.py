"""Real servers on loopback: PostgreSQL, ``mlflow server``, and a proxy that fails as networks do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_S = 90


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL cluster of its own, without durability; gives the address of an empty database."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = Path(tempfile.mkdtemp(prefix="dpexp-postgres-"))
    port = free_port()
    as_user: list[str] = []
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    secret = folder / "password"
    secret.write_text("hunter22\n")
    secret.chmod(0o644)

    def run(program: str, *arguments: str) -> None:
        command = [*as_user, str(programs / program), *arguments]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"})

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "dpexp", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync")
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-o", options, "-w", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://dpexp:hunter22@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def mlflow_server(store: str, artifacts: Path) -> Iterator[int]:
    """An ``mlflow server`` that answers; gives its port."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_ARTIFACTS_DESTINATION": artifacts.as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with open(artifacts.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [*command, "--workers", "1"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_up(port, process)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2),
        ):
            return
        time.sleep(0.1)
    raise AssertionError(f"no mlflow server on port {port}: exit code {process.poll()}")


class Proxy:
    """Between client and server, failing as it is told:

    ``forward``, ``refuse`` (nobody listens), ``hang`` (accepts and never answers), ``swallow`` (requests
    arrive, answers do not). ``requests`` counts what went to the server, ``heard`` keeps the clients' bytes.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self.mode = "forward"
        self.swallow_after = -1
        self.requests = 0
        self.heard = b""
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        self.up()
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse from now on, and cut what is open."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._open.append(client)
                if self.mode != "hang":
                    threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            self._open.append(server)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16):
                self.heard = (self.heard + data)[-(1 << 20) :]
                if data.startswith((b"GET", b"POST", b"PUT", b"PATCH")):
                    self.requests += 1
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.mode == "swallow" or 0 <= self.swallow_after < self.requests:
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
