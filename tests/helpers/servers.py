"""Servers on loopback: PostgreSQL, ``mlflow server``, and a proxy that fails as networks do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import secrets
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_TIMEOUT_S = 600


def free_port() -> int:
    """A port on which nothing listens, below those that the operating system gives to connections."""
    while True:
        port = 10000 + secrets.randbelow(22000)  # tests seed ``random`` alike
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A new PostgreSQL cluster without durability; yields the address of an empty database."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if programs is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="dpexp-postgres-"))
    port = free_port()
    as_user: list[str] = []
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    password = folder / "password"
    password.write_text("hunter22\n")
    password.chmod(0o644)

    def run(program: str, *arguments: str) -> None:
        command = [*as_user, str(programs / program), *arguments]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"})

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "dpexp", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync")
        options = ["-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-c", "fsync=off"]
        run("pg_ctl", "-D", data, "-o", shlex.join(options), "-w", "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://dpexp:hunter22@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


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
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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

    ``down`` refuses connections until ``up``. With a ``fault`` the server gets no request, and the answer is
    500 (``500``), nothing (``hang``), or a reset of the connection (``reset``). After
    ``swallow_after`` requests (negative: never) requests arrive and answers do not. ``requests`` counts those
    that went to the server; ``received`` holds the bytes that clients sent. Answers take ``delay_s`` longer.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self.fault = ""
        self.delay_s = 0.0
        self.swallow_after = -1
        self.requests = 0
        self.received = b""
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
                if self.fault:
                    if self._fail(client):
                        continue
                    break
                self.received = (self.received + data)[-(1 << 20) :]
                if data.startswith((b"GET", b"POST", b"PUT", b"PATCH")):
                    self.requests += 1
                server.sendall(data)

    def _fail(self, client: socket.socket) -> bool:
        """Answer a request as ``fault`` says; whether the connection stays open."""
        if self.fault == "500":
            client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
        if self.fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        return self.fault == "hang"

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if 0 <= self.swallow_after < self.requests:
                    break
                time.sleep(self.delay_s)
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


class LyingServer:
    """Forwards to a server, but answers these calls of its API with success and does not forward them."""

    def __init__(self, target: int, *calls: str) -> None:
        self.calls = calls
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command != "GET" and any(call in self.path for call in outer.calls):
                    status, content = 200, b"{}"
                else:
                    status, content = self.forward(body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def forward(self, body: bytes) -> tuple[int, bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", target)
                connection.request(self.command, self.path, body, {**self.headers, "Connection": "close"})
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                return answer.status, content

            def log_message(self, *arguments: object) -> None:
                """Nothing on stderr."""

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LyingServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
