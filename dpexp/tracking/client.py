"""Client: MLflow's own client, with the calls that a delivery makes, and the making of a store.

Importing this imports mlflow, which takes seconds and which a machine may lack: ``store.import_mlflow`` does.
"""

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import mlflow.environment_variables
import requests
from filelock import FileLock
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from dpexp.tracking.content import Point

PROBE_TIMEOUT_S = 3.0


class Client(MlflowClient):
    """MLflow's client for plain values. Every method may raise what the store raises."""

    def log_points(self, mlflow_run_id: str, points: Iterable[Point]) -> None:
        """Log at most 1000 points of metrics."""
        self.log_batch(mlflow_run_id, metrics=[Metric(*point) for point in points])

    def log_config(self, run: Any, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log the params that the MLflow run lacks, which never change, and tags."""
        missing = [Param(*item) for item in params.items() if item[0] not in run.data.params]
        self.log_batch(run.info.run_id, params=missing, tags=[RunTag(*item) for item in tags.items()])

    def log_dataset(self, mlflow_run_id: str, context: str, fields: Mapping[str, str]) -> None:
        """Log a dataset input of these fields of ``Dataset``: runs on the same data share one dataset."""
        tag = InputTag("mlflow.data.context", context)
        self.log_inputs(mlflow_run_id, datasets=[DatasetInput(Dataset(**fields), [tag])])


def check_server(pages: str) -> None:
    """Raises OSError or ValueError unless the server answers. Sends it no credentials."""
    variables = cast("Any", mlflow.environment_variables)
    trusts_any = variables.MLFLOW_TRACKING_INSECURE_TLS.get()
    verify = variables.MLFLOW_TRACKING_SERVER_CERT_PATH.get() or not trusts_any  # as MLflow's client does
    with warnings.catch_warnings(action="ignore"):
        answer = requests.get(f"{pages}/health", timeout=PROBE_TIMEOUT_S, verify=verify)
    if answer.status_code >= 500:
        raise OSError(f"it answers {answer.status_code} {answer.reason}")


def build_file(path: Path, artifacts: Path, timeout_s: float) -> None:
    """Build MLflow's schema and default experiment in memory; write the file unless another process has.

    ``timeout_s`` is how long another process may take to write it. Raises whatever MLflow and SQLite raise.
    """
    if _is_built(path):
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # 2 s, and a server needs none

    building, create = path.with_name(f"{path.name}.building"), cast("Any", SqlAlchemyStore)
    engine = create("sqlite://", artifacts.as_uri()).engine
    with engine.connect() as memory, FileLock(path.with_name(f"{path.name}.lock"), timeout=timeout_s):
        if not _is_built(path):
            building.unlink(missing_ok=True)  # of a process that was killed
            with contextlib.closing(sqlite3.connect(building)) as file:
                memory.connection.driver_connection.backup(file)
                # With write-ahead logging readers and writers wait less; not every file system supports it.
                with contextlib.suppress(sqlite3.OperationalError):
                    file.execute("PRAGMA journal_mode=WAL")
            os.replace(building, path)
    engine.dispose()


def _is_built(path: Path) -> bool:
    """Whether the store exists. An empty file does not count: MLflow leaves one when it is killed early."""
    return path.exists() and path.stat().st_size > 0
