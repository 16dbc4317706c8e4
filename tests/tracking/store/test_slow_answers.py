"""A server whose answers drip: every command ends within its bound, with one message, and loses nothing."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import journals
import pytest
from command_lines import script
from tracking_processes import drive

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.journal.seal import checksum
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LedgerEntry

BEGINS = {"headers": b"X-Slow: ", "body": b"Content-Length: 1000000\r\n\r\n"}
MESSAGE = "does not give a whole answer in time"


@pytest.fixture(params=BEGINS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is well by ``/health``, and whose other answers never end: a byte ten times a second."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with contextlib.suppress(OSError), client:
                if client.recv(1 << 16).startswith(b"GET /health"):
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK")
                    return
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/json\r\n" + BEGINS[request.param])
                while not ended.wait(0.1):
                    client.sendall(b" ")

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def short_bound(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole answer may take a second; no read of a byte does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def ended(runs: Path, run_id: str, address: str = "") -> Path:
    """A finished run; with an address, one that was delivered there."""
    journal = journals.complete(runs, run_id)
    finish(journal)
    if address:
        now = checksum(journal)
        entry = LedgerEntry("1", f"{run_id}-there", True, now["bytes"], now["crc"])
        ledger.write_entry(journal.parent, address, entry)
    return journal.parent


def test_sync_tries_one_run_and_keeps_all(runs: Path) -> None:
    folders = [ended(runs, f"run-{n}") for n in range(3)]
    synced = script("runs.py", "sync")
    assert synced.returncode == 3
    first, last = synced.stderr.splitlines()
    assert first.startswith("run-0  not delivered: ")
    assert MESSAGE in first
    assert "no other run was tried" in last
    assert all(load(folder).status == "finished" for folder in folders)


def test_check_and_sync_ask_about_one_delivered_run(runs: Path, address: str) -> None:
    for number in range(3):
        ended(runs, f"run-{number}", address)
    for words in (("check", "--store"), ("check", "--store", "--repair"), ("sync",)):
        asked = script("runs.py", *words)
        assert asked.returncode == 3
        assert asked.stderr.count(MESSAGE) == 1
        assert asked.stderr.count("\n") == 1


def test_reap_closes_every_run_and_tries_to_deliver_one(runs: Path) -> None:
    for number in range(3):
        journal = journals.begin(runs, f"dead-{number}")
        journals.step(journal, 0, 10)
        journal.close()
    reaped = script("runs.py", "reap")
    assert reaped.returncode == 3
    assert reaped.stdout.count("closed: killed, 10 steps recorded") == 3
    assert reaped.stderr.count(MESSAGE) == 1


def test_an_upload_ends_with_the_journal_complete(dpexp_home: Path) -> None:
    driver = drive("finish")
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert MESSAGE in delivery["message"]
    assert driver.wait() == 3
    assert len(load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 50
    assert (dpexp_home / "runs" / driver.run_id / JOURNAL).exists()
