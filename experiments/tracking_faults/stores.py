"""Stores that fail whoever delivers to them: a server that drips its answers or has no TLS, a locked database."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sqlite3
import ssl
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
    path = home / "locked" / f"{time.time_ns()}.db"
    path.parent.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as store:
        store.execute("VACUUM INTO ?", (str(path),))
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    _locks.append(connection)
    return f"sqlite:///{path}"


TLS = ("a certificate of its own", "no TLS", "closed in the handshake", "garbage in the handshake")


@contextlib.contextmanager
def tls_server(folder: Path, how: str) -> Iterator[str]:
    """The address of a server with which TLS fails in one of these ways."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(folder))

    def answer(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:  # ssl.SSLError too: the client refuses the certificate
            if how == "a certificate of its own":
                context.wrap_socket(client, server_side=True).recv(1)
                return
            client.recv(1 << 16)
            client.sendall(
                {
                    "no TLS": b"HTTP/1.1 400 Bad Request\r\n\r\n",
                    "garbage in the handshake": b"\x16\3\3\0\5abcde",
                }.get(how, b"")
            )

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _certificate(folder: Path) -> Path:
    """A certificate that no one has signed, with its key."""
    path = folder / "certificate.pem"
    if not path.exists():
        words = ("-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "1")
        key = folder / "key.pem"
        subprocess.run(
            ["openssl", "req", *words, "-keyout", key, "-out", path], check=True, capture_output=True
        )
        path.write_text(key.read_text() + path.read_text())
    return path


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[int]:
    """A server of MLflow with a store in this folder; its port, which stays: runs know their store by it."""
    folder.mkdir(exist_ok=True)
    chosen = folder / "port"
    if not chosen.exists():
        with socket.create_server(("127.0.0.1", 0)) as free:
            chosen.write_text(str(free.getsockname()[1]))
    port = int(chosen.read_text())
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
