"""Servers on loopback: ``mlflow server``, and a proxy that fails as networks do."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_TIMEOUT_S = 600


def free_port() -> int:
    """A port on which nothing listens, below those that the operating system gives to connections."""
    while True:
        port = 10000 + secrets.randbelow(22000)  # tests seed ``random`` alike
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def mlflow_server(store: str, artifacts: Path) -> Iterator[int]:
    """An ``mlflow server`` that answers; yields its port."""
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
            os.killpg(
                process.pid, signal.SIGKILL
            )  # asked to end, it waits for the clients that are connected
        process.wait()


def _wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10),
        ):
            return
        time.sleep(0.1)
    raise AssertionError(f"no mlflow server on port {port}: exit code {process.poll()}")


class Proxy:
    """A proxy between client and server whose network can fail.

    ``down`` refuses connections until ``up``. While it is ``failing`` the server gets no request, and the
    answer is 500.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self.failing = False
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
        """Listen, always on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections from now on, and cut the open ones."""
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
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            self._open.append(server)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16):
                if self.failing:
                    client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                    client.shutdown(socket.SHUT_RDWR)
                    break
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
