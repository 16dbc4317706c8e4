"""Stores that fail whoever delivers to them: a server that drips its answers, a database that is locked."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_locks: list[sqlite3.Connection] = []
"""Connections that lock a store until this process ends."""


@functools.cache
def dripping_server(home: Path) -> str:
    """The address of a server that is well by ``/health``, and whose other answers never end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            health = client.recv(1 << 16).startswith(b"GET /health")
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 if health else 10**6))
            while True:
                client.sendall(b" ")
                time.sleep(2)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@functools.cache
def locked_database(home: Path) -> str:
    """The address of a store that another process is writing, and does not end."""
    path = home / "locked" / "mlflow.db"
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as store:
        store.execute("VACUUM INTO ?", (str(path),))
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    _locks.append(connection)
    return f"sqlite:///{path}"


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[int]:
    """A server of MLflow with a store in this folder; its port."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    environ = os.environ | {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_ARTIFACTS_DESTINATION": (folder / "artifacts").as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    words = ("-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
                break
            time.sleep(0.1)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
