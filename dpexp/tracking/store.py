"""Store: the MLflow store that runs are delivered into, probed before it is used.

``MLFLOW_TRACKING_URI`` names it, else it is ``mlflow.db`` in DPEXP_HOME; MLflow's other variables (tokens,
user and password, TLS, time limits) work as its users know them.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dpexp.record import redact
from dpexp.tracking import points
from dpexp.tracking.content import Point
from dpexp.tracking.embedded import Embedded, first_line
from dpexp.tracking.errors import StoreError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MLFLOW_BATCH = 1000
"""Points a call of MLflow's client: its limit."""

PROBE_S = 3.0
"""How long a server may take to answer at all."""

CLIENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""MLflow's own defaults wait for minutes. What the user set stays."""


@dataclass
class Store:
    """Where runs go. ``open`` it before use; ``name`` is its address without credentials."""

    uri: str
    home: Path
    artifacts: Path
    embedded: Embedded | None
    _client: Any = field(default=None, repr=False)
    _inserts: bool = False

    @classmethod
    def of(cls, home: Path) -> Store:
        """The store of this environment; nothing is opened, made or imported yet."""
        uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
        if not uri:
            return cls(
                f"sqlite:///{home / 'mlflow.db'}",
                home,
                home / "mlruns",
                Embedded(home / "mlflow.db", home / "mlruns"),
            )
        path = sqlite_path(uri)
        if path is None:
            return cls(uri, home, home / "mlruns", None)
        return cls(uri, home, path.parent / "mlruns", Embedded(path, path.parent / "mlruns"))

    @property
    def name(self) -> str:
        return redact(self.uri)

    @property
    def is_remote(self) -> bool:
        """Whether the store is a server that keeps artifacts itself."""
        return self.embedded is None and urlsplit(self.uri).scheme in ("http", "https", "databricks")

    @property
    def client(self) -> MlflowClient:
        """MLflow's client; the store must be open."""
        if self._client is None:
            raise StoreError(f"the store {self.name} is not open")
        client: MlflowClient = self._client
        return client

    def warm_up(self) -> None:
        """What can be done before a run begins, without a trace: import mlflow, and look at the store."""
        import_mlflow()
        if self.embedded is not None:
            self.embedded.check()

    def open(self) -> None:
        """Make the store usable. Raises StoreError, within 3 s for a server that is away."""
        if self._client is not None:
            return
        import_mlflow()
        from mlflow.tracking import MlflowClient

        if self.embedded is not None:
            self.embedded.install()
        else:
            probe(self.uri)
        try:
            self._client = MlflowClient(self.uri)
        except Exception as error:  # MLflow raises its own, SQLAlchemy's and any driver's
            raise StoreError(f"the store {self.name} cannot be opened: {describe(error)}") from error
        self._inserts = self.embedded is not None and points.fits(self.embedded.path)

    @property
    def batch(self) -> int:
        """Points a call."""
        return points.BATCH if self._inserts else MLFLOW_BATCH

    def log(self, run_id: str, batch: Sequence[Point]) -> None:
        """Points of one run, at most ``batch`` of them: all or none; one that is there already stays one.

        Raises what the store raises, GoneError where a run in SQLite is gone.
        """
        if self._inserts and self.embedded is not None:
            points.insert(self.embedded.path, run_id, batch)
            return
        from mlflow.entities import Metric

        self.client.log_batch(run_id, metrics=[Metric(p.key, p.value, p.at, p.step) for p in batch])

    def experiment_id(self, name: str) -> str:
        """The experiment of this name, made where there is none. Raises StoreError for a deleted one."""
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = None if self.is_remote else (self.artifacts / re.sub(r"[^\w.-]", "_", name)).as_uri()
            try:
                return str(self.client.create_experiment(name, artifact_location=location))
            except MlflowException as error:  # another process was first: then it is there now
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise StoreError(f"experiment '{name}' cannot be made: {describe(error)}") from error
        if found.lifecycle_stage != "active":
            raise StoreError(
                f"experiment '{name}' was deleted in {self.name}: restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`, or give --experiment another name"
            )
        return str(found.experiment_id)

    def where(self, experiment_id: str, mlflow_run_id: str) -> str:
        """Where to look at a run: a link, or the command that shows it."""
        page = f"#/experiments/{experiment_id}/runs/{mlflow_run_id}"
        if urlsplit(self.uri).scheme in ("http", "https"):
            return f"{without_login(self.uri).rstrip('/')}/{page}"
        return f"python scripts/ui.py shows it at {page}"


def import_mlflow() -> None:
    """Import mlflow with patience set low. Raises StoreError where it is not installed."""
    for name, value in CLIENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow.tracking  # noqa: F401
    except ImportError as error:
        raise StoreError(f"mlflow cannot be imported here ({first_line(error)})") from error


def probe(uri: str) -> None:
    """Raises StoreError unless somebody answers at the address within 3 s. Sends no credentials."""
    parts = urlsplit(uri)
    try:
        if parts.scheme in ("http", "https"):
            _probe_http(uri)
        elif parts.scheme.partition("+")[0] in ("postgresql", "mysql", "mssql"):
            _probe_database(uri)
    except (OSError, ValueError) as error:
        raise StoreError(f"the server {redact(uri)} does not answer: {describe(error)}") from error


def _probe_database(uri: str) -> None:
    """One connection: MLflow itself would try ten times, for minutes. Raises StoreError or OSError."""
    import sqlalchemy

    parts = urlsplit(uri)
    port = parts.port or {"postgresql": 5432, "mysql": 3306, "mssql": 1433}[parts.scheme.partition("+")[0]]
    socket.create_connection((parts.hostname or "localhost", port), timeout=PROBE_S).close()
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
        engine.connect().close()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        raise StoreError(f"the database {redact(uri)} cannot be used: {describe(error)}") from error


def _probe_http(uri: str) -> None:
    import warnings

    import requests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # certificates are checked by the client, which sends the credentials
        answer = requests.get(f"{without_login(uri).rstrip('/')}/health", timeout=PROBE_S, verify=False)
    if answer.status_code >= 500:
        raise OSError(f"it answers {answer.status_code} {answer.reason}")


def describe(error: BaseException) -> str:
    """One line on an error of the store, free of credentials."""
    if isinstance(error, StoreError):
        return redact(str(error))
    text = first_line(error)
    for said, means in _PLAIN.items():
        if said in text:
            return means
    return redact(text if len(text) <= 300 else text[:297] + "...")


_PLAIN = {
    "Connection refused": "connection refused",
    "Name or service not known": "no host of that name",
    "Temporary failure in name resolution": "no host of that name",
    "Read timed out": "it accepts, but does not answer in time",
    "timed out": "no answer in time",
    "Connection aborted": "the connection was cut",
    "Connection reset": "the connection was cut",
    "database or disk is full": "the disk is full",
    "No space left on device": "the disk is full",
    "readonly database": "the store is read-only",
    "database is locked": "another process keeps the store locked",
}


def without_login(uri: str) -> str:
    """``https://user:password@host/x`` -> ``https://host/x``."""
    return re.sub(r"(?<=://)[^/]*@", "", uri)


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an ``sqlite:///`` address; None for other addresses and for memory."""
    if not uri.startswith("sqlite:///"):
        return None
    path = unquote(uri.removeprefix("sqlite:///").partition("?")[0])
    return Path(path).absolute() if path and path != ":memory:" else None
