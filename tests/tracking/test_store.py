"""A store that cannot be used: one line says what is wrong, where, and what to do; nothing is changed."""

import http.server
import os
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import journals
import needs
import pytest
from command_lines import script
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mlflow_reader import everything
from tracking_processes import drive

from dpexp.record.record import Record
from dpexp.tracking.store import Store, StoreError, create_file

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


def broken_store(path: Path, damage: str) -> str:
    """Write something that is not a usable store; returns what the error must name."""
    if damage == "directory":
        path.mkdir()
        return "it is not a file"
    if damage == "garbage":
        path.write_bytes(os.urandom(8192))
        return "it is not an SQLite file"
    if damage == "older":
        create_file(path, path.parent / "mlruns")
    connection = sqlite3.connect(path)
    if damage == "other":
        connection.execute("CREATE TABLE recipes (name)")
    elif damage == "older":
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    else:
        connection.execute("CREATE TABLE alembic_version (version_num)")
    connection.commit()
    connection.close()
    return {
        "other": "not a store of MLflow",
        "older": "found version 451aebb31d03",
        "locked": "another process keeps it locked",
    }[damage]


@pytest.mark.parametrize("damage", ["garbage", "other", "older", "directory", "locked"])
def test_a_store_that_cannot_be_used_is_named_and_unchanged(dpexp_home: Path, damage: str) -> None:
    path = dpexp_home / "mlflow.db"
    message = broken_store(path, damage)
    before = path.read_bytes() if path.is_file() else b""
    holder = sqlite3.connect(path if damage == "locked" else ":memory:")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as raised:
        Store.from_environment(dpexp_home).open()
    holder.close()
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_store_that_cannot_be_used_leaves_the_journal(dpexp_home: Path) -> None:
    message = broken_store(dpexp_home / "mlflow.db", "garbage")
    driver = drive("finish", steps=20)
    delivery = driver.delivery()
    assert driver.wait() == 3
    assert message in delivery["message"]
    assert f"python scripts/runs.py sync {driver.run_id}" in delivery["message"]
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20
    synced = script("runs.py", "sync")
    assert synced.returncode == 3
    assert message in synced.stderr
    assert "Traceback" not in synced.stderr


def test_a_mistyped_store_directory_is_not_created(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mistyped/mlflow.db")
    with pytest.raises(StoreError, match="mistyped does not exist"):
        Store.from_environment(dpexp_home).open()
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize(
    ("options", "message"), [("ro", "is read-only for this user"), ("size=400k", "disk is full")]
)
def test_a_read_only_or_full_store_is_named(
    dpexp_home: Path, tmp_path: Path, options: str, message: str
) -> None:
    folder = tmp_path / "fixed"
    before = needs.disk(folder, options)
    driver = drive("finish", steps=20, before=before, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    delivery = driver.delivery()
    assert str(folder) in delivery["message"]
    assert message in delivery["message"]
    assert driver.wait() == 3
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20


def test_artifacts_that_cannot_be_written_are_named_and_come_later(home_with_store: Path) -> None:
    folder = journals.complete(home_with_store / "runs").parent
    (home_with_store / "mlruns").write_text("not a folder")
    failed = script("runs.py", "sync")
    assert failed.returncode == 3
    assert "Traceback" not in failed.stderr
    assert str(home_with_store / "mlruns") in failed.stderr
    (home_with_store / "mlruns").unlink()
    assert script("runs.py", "sync").returncode == 0
    assert "record.json" in everything(f"sqlite:///{home_with_store / 'mlflow.db'}", folder.name)["artifacts"]


# --- certificates --------------------------------------------------------------------------------


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def secure_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server whose certificate signs itself: its address and the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "it")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    start = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + timedelta(days=1))
    signed = builder.add_extension(host, False).sign(key, hashes.SHA256())
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = tmp_path / "server.pem"
    path.write_bytes(signed.public_bytes(pem) + key.private_bytes(pem, private, serialization.NoEncryption()))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}", path
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("setting", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_INSECURE_TLS"])
def test_what_the_message_on_a_certificate_says_makes_the_server_trusted(
    dpexp_home: Path, secure_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    address, path = secure_server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(StoreError, match=f"certificate is not trusted here: .*{setting}"):
        Store.from_environment(dpexp_home).open()
    monkeypatch.setenv(setting, str(path) if setting.endswith("PATH") else "true")
    Store.from_environment(dpexp_home).open()
