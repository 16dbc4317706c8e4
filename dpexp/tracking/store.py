"""Store: where runs are delivered to: one SQLite file, made so that no crash breaks it, or an MLflow server.

``MLFLOW_TRACKING_URI`` names it; the default is ``mlflow.db`` in DPEXP_HOME. MLflow's other variables
(tokens, user and password, TLS, timeouts) have their usual meaning.

MLflow creates its schema in place: two first uses at once, or one that is killed, leave a file that never
works again. Here each process builds it in memory, and the first one writes it: as ``mlflow.db.building``,
under the lock ``mlflow.db.lock``, and renamed. So none waits for another that is slow.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.config.names import folder_name
from dpexp.config.process import UI_PORT, command
from dpexp.record.redact import redact
from dpexp.tracking.content import RUN_ID_TAG, VIEW_TAG, run_list_view

if TYPE_CHECKING:
    from dpexp.tracking.client import Client

LOCK_TIMEOUT_S = 60.0
"""How long another process may take to write the file: 0.01 s on an idle machine."""
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
_MOVE_AWAY = "move it away, then a new one is created, or name another"
_MESSAGES = {
    "certificate": "its certificate is not trusted here: set MLFLOW_TRACKING_SERVER_CERT_PATH to the file "
    "with the certificate that signed it, or MLFLOW_TRACKING_INSECURE_TLS=true to trust any",
    "Connection refused": "connection refused",
    "Connection reset by peer": "the connection was reset",
    "Name or service not known": "unknown host",
    "Temporary failure in name resolution": "unknown host",
    "timed out": "no answer in time",
    "disk is full": "the disk is full",
    "No space left on device": "the disk is full",
    "readonly database": "it is read-only",
    "database is locked": "another process keeps it locked: try later",
    "unable to open database file": f"it is not a file: {_MOVE_AWAY}",
    "file is not a database": f"it is not an SQLite file: {_MOVE_AWAY}",
    "no such table: alembic_version": f"it is not a store of MLflow: {_MOVE_AWAY}",
}
"""Messages for texts that libraries bury in long errors; the first match counts."""


class StoreError(RuntimeError):
    """The store cannot be used: what is wrong, where, and what to do. Contains no credentials."""


def short_message(error: BaseException) -> str:
    """One line on an error that a store or its driver raised, free of credentials."""
    text = str(error).strip() or type(error).__name__
    if not isinstance(error, StoreError):
        first, *_ = text.splitlines()  # MLflow and SQLAlchemy append complete SQL statements
        text = next((message for fragment, message in _MESSAGES.items() if fragment in text), first)
    text = redact(text)  # before it is cut: a part of a credential is not recognized
    return text if len(text) <= 300 else text[:297] + "..."


@dataclass
class Store:
    """Where runs are delivered to. ``file`` is None for a server."""

    uri: str
    artifacts: Path
    file: Path | None

    @classmethod
    def from_environment(cls, home: Path) -> Store:
        """The store of this environment. Neither opens nor creates it, and does not import mlflow."""
        uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip() or f"sqlite:///{home / 'mlflow.db'}"
        if not uri.startswith("sqlite:///"):
            return cls(uri, home / "mlruns", None)
        file = Path(uri.removeprefix("sqlite:///")).absolute()
        return cls(f"sqlite:///{file}", file.parent / "mlruns", file)

    @functools.cached_property
    def name(self) -> str:
        """The store's address without credentials."""
        return redact(self.uri)

    @property
    def is_server(self) -> bool:
        """Whether the store is an MLflow server, which has pages of its own and keeps artifacts itself."""
        return self.uri.lower().startswith(("http:", "https:"))

    @property
    def pages(self) -> str:
        """The address of a server's pages: ``https://user:password@host/x/`` -> ``https://host/x``."""
        return re.sub(r"(?<=://)[^/]*@", "", self.uri).rstrip("/")

    def open(self) -> None:
        """Make the store usable, or see within seconds that a server answers. Raises StoreError."""
        mlflow_client = import_mlflow()
        if self.is_server:
            try:
                mlflow_client.check_server(self.pages)
            except (OSError, ValueError) as error:  # as those of requests are
                message = f"the server {self.name} cannot be used: {short_message(error)}"
                raise StoreError(message) from error
        _ = self.client

    @functools.cached_property
    def client(self) -> Client:
        """MLflow's client; creates a store that is a file. Raises StoreError."""
        mlflow_client = import_mlflow()
        if self.file is not None:
            create_file(self.file, self.artifacts)
        try:
            made: Client = mlflow_client.Client(self.uri)
            return made
        except Exception as error:  # MLflow's or SQLAlchemy's: the schema is that of another version
            raise StoreError(f"the store {self.name} cannot be used: {short_message(error)}") from error

    def experiment_id(self, name: str) -> str:
        """The experiment of this name, created if absent. Raises StoreError for a deleted one."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            location = None if self.is_server else (self.artifacts / folder_name(name)).as_uri()
            try:
                return str(self.client.create_experiment(name, location, {VIEW_TAG: run_list_view()}))
            except Exception:  # MLflow's: perhaps another process has just created it
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            how = f"`mlflow experiments restore -x {experiment.experiment_id}`, or give --experiment another"
            raise StoreError(f"experiment '{name}' was deleted in {self.name}: restore it with {how}")
        if VIEW_TAG not in experiment.tags:
            self.client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, run_list_view())
        return str(experiment.experiment_id)

    def runs(self) -> dict[str, Any]:
        """The MLflow runs of dpexp by run id, which are not deleted: asks each experiment once."""
        found: dict[str, Any] = {}
        search = functools.partial(self.client.search_runs, max_results=1000)
        for experiment in self.client.search_experiments():
            token: str | None = ""
            while token is not None:
                page = search([experiment.experiment_id], f"tags.`{RUN_ID_TAG}` LIKE '%'", page_token=token)
                found |= {run.data.tags[RUN_ID_TAG]: run for run in page}
                token = page.token
        return found

    def where(self, experiment_id: str, mlflow_run_id: str) -> str:
        """Where the user finds a run: a link, after the command that serves it where there is no server."""
        page = f"#/experiments/{experiment_id}/runs/{mlflow_run_id}?workflowType=machine_learning"
        if self.is_server:
            return f"{self.pages}/{page}"
        return f"{command('ui')} shows it at http://127.0.0.1:{UI_PORT}/{page}"


def import_mlflow() -> Any:
    """Import mlflow, with short timeouts; returns the module ``client``. Raises StoreError without mlflow."""
    for name, value in CLIENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from dpexp.tracking import client  # it takes seconds, and a machine may lack mlflow
    except ImportError as error:
        raise StoreError(f"mlflow cannot be imported here ({error})") from error
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs what it raises
    return client


def create_file(path: Path, artifacts: Path) -> None:
    """Create the store unless it exists. Raises StoreError where it cannot be used or created."""
    _check_folder(path)
    try:
        import_mlflow().build_file(path, artifacts, LOCK_TIMEOUT_S)
        _check_format(path)
    except StoreError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, SQLite's or the system's
        raise StoreError(f"the store {path} cannot be used: {short_message(error)}") from error


def _check_folder(path: Path) -> None:
    """Raises StoreError unless there may be a store at this path. Creates nothing."""
    folder = path.parent
    if not folder.is_dir():
        raise StoreError(f"the store's directory {folder} does not exist: create it, or correct the name")
    for each in (folder, path):
        if each.exists() and not os.access(each, os.R_OK | os.W_OK):
            raise StoreError(f"{each} is read-only for this user, who cannot have a store there")


def _check_format(path: Path) -> None:
    """Raises sqlite3.Error for another file, with which MLflow would try for minutes."""
    with contextlib.closing(sqlite3.connect(path, timeout=1.0)) as connection:
        connection.execute("SELECT version_num FROM alembic_version")
