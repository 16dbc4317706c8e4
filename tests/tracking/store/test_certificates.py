"""Servers whose certificate cannot be trusted: an error says what is wrong and what to do."""

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpexp.tracking.errors import StoreError
from dpexp.tracking.store.store import import_mlflow, probe

CERTIFICATE, TRUSTS_ANY = "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_INSECURE_TLS"
Serve = Callable[[str], tuple[str, Path]]


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""


def certificate(path: Path, host: str, valid_from: datetime) -> Path:
    """A certificate that signs itself, with its key, in one file; valid for a day."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "it")]),
    )
    address = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(valid_from).not_valid_after(valid_from + timedelta(days=1))
    signed = builder.add_extension(x509.SubjectAlternativeName([address]), False).sign(key, hashes.SHA256())
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form))
    return path


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server whose certificate is for a host, ``expired`` or not; its address and certificate."""
    import_mlflow()
    monkeypatch.delenv(CERTIFICATE, raising=False)
    monkeypatch.delenv(TRUSTS_ANY, raising=False)
    servers = []

    def start(host: str) -> tuple[str, Path]:
        age = timedelta(days=9) if host == "expired" else timedelta(hours=1)
        path = certificate(
            tmp_path / "server.pem", "127.0.0.1" if host == "expired" else host, datetime.now(UTC) - age
        )
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"https://127.0.0.1:{server.server_port}", path

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_certificate_of_no_known_authority_is_named_with_what_to_set(serve: Serve) -> None:
    address, _ = serve("127.0.0.1")
    with pytest.raises(StoreError, match=f"not of a known authority: set {CERTIFICATE}.*{TRUSTS_ANY}"):
        probe(address)


@pytest.mark.parametrize(("host", "message"), [("other.invalid", "another host"), ("expired", "has expired")])
def test_a_known_certificate_that_does_not_fit_is_named(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, host: str, message: str
) -> None:
    address, path = serve(host)
    monkeypatch.setenv(CERTIFICATE, str(path))
    with pytest.raises(StoreError, match=f"{message}.*{TRUSTS_ANY}"):
        probe(address)


def test_a_file_of_certificates_that_is_missing_is_named(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, path = serve("127.0.0.1")
    monkeypatch.setenv(CERTIFICATE, str(path.with_name("missing.pem")))
    with pytest.raises(StoreError, match=f"{CERTIFICATE} names does not exist"):
        probe(address)


@pytest.mark.parametrize("setting", [CERTIFICATE, TRUSTS_ANY])
def test_what_the_message_says_makes_the_server_trusted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    address, path = serve("127.0.0.1" if setting == CERTIFICATE else "other.invalid")
    monkeypatch.setenv(setting, str(path) if setting == CERTIFICATE else "true")
    probe(address)
