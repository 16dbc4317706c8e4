"""A proxy in front of an MLflow server that breaks one answer, in each way in which an HTTP answer can break.

::

    client --> HttpFaults --> server        the first request that fits ``endpoint`` gets ``fault``, all others
                                            the server's answer; each endpoint that was asked is in ``asked``

A fault says whether the server gets the request (``arrives``): one that was carried out and seems to have
failed must not be done twice.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

LATE_S = 4.0
"""How long late answers take: longer than the bound of those who ask."""
HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in</body></html>"
_IDS = re.compile(r"/[0-9a-f]{32}(?=/|$)|/tr-[0-9a-f]{32}(?=/|$)|(?<=/artifacts)/.*")


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    content: bytes


Break = Callable[["_Handler", Answer], None]


@dataclass(frozen=True)
class Fault:
    """``write`` breaks an answer; the server gets the request if it ``arrives``, else an empty answer is broken."""

    write: Break
    arrives: bool = True


def answer(status: int, content: bytes, length: int = 0, headers: dict[str, str] | None = None) -> Break:
    """Another answer; its ``Content-Length`` is off by ``length``."""

    def write(handler: _Handler, _: Answer) -> None:
        handler.reply(status, content, length=length, headers=headers)

    return write


def cut(begin: float, *, resets: bool = False, claims: int = 0) -> Break:
    """The first part of the answer, from 0 (nothing) over 0.25 (half of the headers) to 1; then the end."""

    def write(handler: _Handler, real: Answer) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        head %= len(real.content) + claims
        parts = {
            0.0: b"",
            0.25: head[:-30],
            0.75: head + real.content[: len(real.content) // 2],
            1.0: head + real.content,
        }
        handler.raw(parts[begin], resets=resets)

    return write


def drip(handler: _Handler, real: Answer) -> None:
    """A byte now and then, beyond the bound of those who ask."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not handler.outer.ended.wait(0.1):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    handler.close_connection = True


def late(handler: _Handler, real: Answer) -> None:
    """The whole answer, too late."""
    handler.outer.ended.wait(LATE_S)
    with contextlib.suppress(OSError):
        handler.reply(real.status, real.content)


def loop(handler: _Handler, real: Answer) -> None:
    """The same address, for ever."""
    handler.reply(301, b"", headers={"Location": handler.path})


def garbage(handler: _Handler, real: Answer) -> None:
    handler.raw(bytes(range(256)) * 4)


FAULTS: dict[str, Fault] = {
    "reset": Fault(cut(0.0, resets=True), arrives=False),
    "reset after it was done": Fault(cut(0.0, resets=True)),
    "closed before headers": Fault(cut(0.0), arrives=False),
    "closed after it was done": Fault(cut(0.0)),
    "half of the headers": Fault(cut(0.25)),
    "half of the body": Fault(cut(0.75)),
    "Content-Length too large": Fault(cut(1.0, claims=50)),
    "Content-Length too small": Fault(cut(1.0, claims=-1)),
    "dripping": Fault(drip),
    "late": Fault(late),
    "400": Fault(answer(400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}'), arrives=False),
    "403": Fault(answer(403, HTML), arrives=False),
    "404": Fault(answer(404, HTML), arrives=False),
    "500": Fault(answer(500, HTML), arrives=False),
    "429 for an hour": Fault(answer(429, b"{}", headers={"Retry-After": "3600"}), arrives=False),
    "redirected to itself": Fault(loop, arrives=False),
    "{}": Fault(answer(200, b"{}"), arrives=False),
    "{} after it was done": Fault(answer(200, b"{}")),
    "[]": Fault(answer(200, b"[]"), arrives=False),
    "null": Fault(answer(200, b"null"), arrives=False),
    "wrong types": Fault(
        answer(200, b'{"experiment": 1, "run": [], "runs": "x", "metrics": {"a": []}, "files": 3}')
    ),
    "HTML": Fault(answer(200, HTML), arrives=False),
    "JSON that is cut": Fault(answer(200, b'{"run": {"info": {"run_'), arrives=False),
    "not gzip": Fault(answer(200, b"no gzip", headers={"Content-Encoding": "gzip"})),
    "cut gzip": Fault(answer(200, gzip.compress(b"{}" * 99)[:20], headers={"Content-Encoding": "gzip"})),
    "garbage": Fault(garbage),
}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    outer: HttpFaults

    def any_method(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.outer.due(f"{self.command} {_IDS.sub('/*', self.path.partition('?')[0])}")
        is_asked = fault is None or fault.arrives
        real = self.forward(body) if is_asked else Answer(200, b"{}")
        if fault is None:
            self.reply(real.status, real.content)
        else:
            fault.write(self, real)

    def forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.outer.target, timeout=60)
        headers = {**self.headers, "Connection": "close", "Accept-Encoding": "identity"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        found = Answer(response.status, response.read())
        connection.close()
        return found

    def reply(
        self, status: int, content: bytes, *, length: int = 0, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) + length))
        self.end_headers()
        self.wfile.write(content)

    def raw(self, content: bytes, *, resets: bool = False) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(content)
            self.wfile.flush()
            if resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""


for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{method}", _Handler.any_method)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """A client that has gone is no error here."""


class HttpFaults:
    """The proxy; ``set`` arms it, and ``broken`` counts the answers that it has broken."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.asked: dict[str, int] = {}
        self.broken = 0
        self.ended = threading.Event()
        self._fault: tuple[str, Fault, int] | None = None
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"outer": self}))
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def set(self, endpoint: str, fault: str, times: int = 1) -> None:
        """Break the next answers of this endpoint, so many."""
        self._fault, self.broken = (endpoint, FAULTS[fault], times), 0

    def clear(self) -> None:
        self._fault = None

    def due(self, endpoint: str) -> Fault | None:
        """The fault of this request, if it is due."""
        with self._lock:
            self.asked[endpoint] = self.asked.get(endpoint, 0) + 1
            if self._fault is None or self._fault[0] != endpoint or self.broken >= self._fault[2]:
                return None
            self.broken += 1
            return self._fault[1]

    def __enter__(self) -> HttpFaults:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
