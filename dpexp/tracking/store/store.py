"""Store: the MLflow store that runs are delivered to, probed before it is used.

``MLFLOW_TRACKING_URI`` names it; the default is ``mlflow.db`` in DPEXP_HOME. MLflow's other variables
(tokens, user and password, TLS, timeouts) have their usual meaning.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from dpexp.config.names import folder_name
from dpexp.config.process import UI_PORT, command
from dpexp.record.redact import redact
from dpexp.tracking.content import content, view
from dpexp.tracking.content.content import Point
from dpexp.tracking.errors import StoreError, first_line, short_message
from dpexp.tracking.store.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

BATCH = 1000  # points a call: the limit of MLflow's log_batch
PROBE_TIMEOUT_S = 3.0
CLIENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""With MLflow's own defaults a call waits for minutes. Variables that the user set are kept."""
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


@dataclass
class Store:
    """Where runs are delivered to. ``sqlite_file`` is None for servers."""

    uri: str
    home: Path
    artifacts: Path
    sqlite_file: SqliteFile | None

    @classmethod
    def from_environment(cls, home: Path) -> Store:
        """The store of this environment. Neither opens nor creates it, and does not import mlflow."""
        uri = _absolute(os.environ.get("MLFLOW_TRACKING_URI", "").strip())
        path = sqlite_path(uri) if uri else home / "mlflow.db"
        if path is None:
            return cls(uri, home, home / "mlruns", None)
        artifacts = path.parent / "mlruns"
        return cls(uri or f"sqlite:///{path}", home, artifacts, SqliteFile(path, artifacts))

    @functools.cached_property
    def name(self) -> str:
        """The store's address without credentials."""
        return redact(self.uri)

    @property
    def is_http(self) -> bool:
        """Whether the store is an MLflow server with pages of its own."""
        return scheme(self.uri) in ("http", "https")

    @property
    def is_remote(self) -> bool:
        """Whether the store is a server that keeps artifacts itself."""
        return self.is_http or scheme(self.uri) == "databricks"

    def warm_up(self) -> None:
        """Import mlflow and check the store, without creating anything. Raises StoreError."""
        import_mlflow()
        if self.sqlite_file is not None:
            self.sqlite_file.check()

    def open(self) -> MlflowClient:
        """Make the store usable. Raises StoreError, within its bound for a server that does not answer."""
        return self.client

    @functools.cached_property
    def client(self) -> MlflowClient:
        """MLflow's client; opens the store at its first use."""
        import_mlflow()
        from mlflow.tracking import MlflowClient

        if self.sqlite_file is not None:
            self.sqlite_file.create()
        else:
            probe(self.uri)
        try:
            return MlflowClient(self.uri)
        except Exception as error:  # MLflow raises its own, SQLAlchemy's and any driver's
            raise StoreError(f"the store {self.name} cannot be opened: {short_message(error)}") from error

    def active_run(self, mlflow_run_id: str, run_id: str) -> Any:
        """The MLflow run of a run, as MLflow returns it; None if it was deleted, or is another run's."""
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(mlflow_run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        is_of_run = run.data.tags.get(content.RUN_ID_TAG, run_id) == run_id
        return run if is_of_run and run.info.lifecycle_stage == "active" else None

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Log at most ``BATCH`` points of a run, all or none; the store keeps a repeated point once."""
        from mlflow.entities import Metric

        self.client.log_batch(run_id, metrics=[Metric(*point) for point in points])

    def run_ids(self, experiment_id: str) -> set[str]:
        """The ids of the active MLflow runs of an experiment."""
        found, token = set[str](), ""
        while token is not None:
            page = self.client.search_runs([experiment_id], max_results=1000, page_token=token or None)
            found |= {run.info.run_id for run in page}
            token = page.token
        return found

    def experiment_id(self, name: str) -> str:
        """The experiment of this name, created if absent. Raises StoreError for a deleted one."""
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            location = None if self.is_remote else (self.artifacts / folder_name(name)).as_uri()
            try:
                return str(self.client.create_experiment(name, artifact_location=location))
            except MlflowException as error:  # perhaps another process has just created it
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    reason = short_message(error)
                    raise StoreError(f"experiment '{name}' cannot be created: {reason}") from error
        if experiment.lifecycle_stage != "active":
            restore = f"mlflow experiments restore -x {experiment.experiment_id}"
            message = f"experiment '{name}' was deleted in {self.name}: restore it with `{restore}`"
            raise StoreError(f"{message}, or give --experiment another name")
        return str(experiment.experiment_id)

    def write_view(self, experiment_id: str) -> None:
        """Write the view of the experiment's runs that links open, unless it is there."""
        tags = self.client.get_experiment(experiment_id).tags
        if tags.get(view.VIEW_TAG) != view.VIEW_STATE:
            self.client.set_experiment_tag(experiment_id, view.VIEW_TAG, view.VIEW_STATE)

    def where(self, experiment_id: str, mlflow_run_id: str) -> str:
        """Where the user finds a run: a link, after the command that serves it where there is no server."""
        page = f"#/experiments/{experiment_id}/runs/{mlflow_run_id}?workflowType=machine_learning"
        if self.is_http:
            return f"{without_login(self.uri)}/{page}"
        return f"{command('ui')} shows it at http://127.0.0.1:{UI_PORT}/{page}"


def import_mlflow() -> None:
    """Import mlflow with short timeouts. Raises StoreError where it is not installed."""
    for name, value in CLIENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow.tracking  # noqa: F401
    except ImportError as error:
        raise StoreError(f"mlflow cannot be imported here ({first_line(error)})") from error
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs what it raises


def probe(uri: str) -> None:
    """Raises StoreError unless a server answers in time. Sends credentials to databases only."""
    kind = scheme(uri).partition("+")[0]
    _check_login(uri)
    try:
        if kind in ("http", "https"):
            _probe_http(uri)
        elif kind in _DATABASE_PORTS:
            _probe_database(uri, _DATABASE_PORTS[kind])
    except (OSError, ValueError) as error:
        raise StoreError(f"the server {redact(uri)} does not answer: {short_message(error)}") from error


def _check_login(uri: str) -> None:
    """Raises StoreError for a login that a parser would cut in two, to show one part as host or port."""
    login = uri.partition("://")[2].rpartition("@")[0]
    cutting = "/?#[] " if scheme(uri) in ("http", "https") else "/?#[] @"
    if ":" in re.sub(r"^[^/:]*:\d*/.*|/.*", "", login) and set(cutting) & set(login):
        raise StoreError(
            f"the login in {redact(uri)} holds one of {' '.join(cutting)}or a space: write it "
            "percent-encoded, as %2F for /"
        )


def _probe_database(uri: str, default_port: int) -> None:
    """Connect once: MLflow itself would try ten times, for minutes. Raises StoreError or OSError."""
    import sqlalchemy

    parts = urlsplit(uri)
    address = (parts.hostname or "localhost", parts.port or default_port)
    socket.create_connection(address, timeout=PROBE_TIMEOUT_S).close()
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
    try:
        engine.connect().close()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        raise StoreError(f"the database {redact(uri)} cannot be used: {short_message(error)}") from error


def _probe_http(uri: str) -> None:
    import mlflow.environment_variables
    import requests
    from urllib3.exceptions import InsecureRequestWarning

    url, variables = f"{without_login(uri)}/health", cast("Any", mlflow.environment_variables)
    trusts_any = variables.MLFLOW_TRACKING_INSECURE_TLS.get()
    verify = variables.MLFLOW_TRACKING_SERVER_CERT_PATH.get() or not trusts_any  # as MLflow's client does
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)
            response = requests.get(url, timeout=PROBE_TIMEOUT_S, verify=verify)
    except requests.exceptions.SSLError as error:
        raise StoreError(f"the server {redact(uri)} cannot be trusted: {short_message(error)}") from error
    if response.status_code >= 500:
        raise OSError(f"it answers {response.status_code} {response.reason}")


def scheme(uri: str) -> str:
    """``https://host`` -> ``https``, for any text: a login may hold what a parser of URIs refuses."""
    return uri.partition(":")[0].lower()


def without_login(uri: str) -> str:
    """``https://user:password@host/x/`` -> ``https://host/x``."""
    return re.sub(r"(?<=://)[^/]*@", "", uri).rstrip("/")


def _absolute(uri: str) -> str:
    """The address with the working directory in it, where it names a file by a relative path.

    What has a meaning in an address (``?``, ``%``) is encoded in the working directory.
    """
    path = uri.removeprefix("sqlite:///")
    is_relative = path not in (uri, "") and not path.startswith(("/", ":memory:", "file:"))
    folder = str(Path.cwd()).replace("%", "%25").replace("?", "%3F")
    return f"sqlite:///{folder}/{path}" if is_relative else uri


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an ``sqlite:///`` address; None for other addresses and databases in memory."""
    if not uri.startswith("sqlite:///"):
        return None
    path = unquote(uri.removeprefix("sqlite:///").partition("?")[0])
    return Path(path).absolute() if path and path != ":memory:" else None
