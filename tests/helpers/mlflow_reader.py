"""Reads everything that an MLflow store has of a run, with MLflow's own client; and lets its process die."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient
from mlflow.utils.file_utils import local_file_uri_to_path

from dpexp.record.record import Record
from dpexp.tracking.content import metric_key, metric_value, summary_metrics
from dpexp.tracking.store import Store

PER_DELIVERY = {"mlflow.user"}


def mlflow_runs(uri: str, run_id: str) -> list[Any]:
    """The MLflow runs with this run's id, of all experiments."""
    client = MlflowClient(uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`dpexp.run_id` = '{run_id}'"))


def only_run(uri: str, run_id: str) -> Any:
    """The only MLflow run of this run; an AssertionError where there are none or several."""
    runs = mlflow_runs(uri, run_id)
    assert len(runs) == 1, f"{len(runs)} MLflow runs of {run_id}"
    return runs[0]


def artifact_folder(run: Any) -> Path:
    """Where a store on this machine keeps the artifacts of an MLflow run."""
    return Path(local_file_uri_to_path(run.info.artifact_uri))


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float, int]]:
    """Every (step, value, timestamp) of a metric; nan as a string, so that histories can be compared."""
    points = MlflowClient(uri).get_metric_history(run_id, key)
    rows = [(p.step, "nan" if math.isnan(p.value) else p.value, p.timestamp) for p in points]
    return sorted(rows, key=lambda row: (row[0], row[2], str(row[1])))


def steps_of(uri: str, run_id: str, key: str = "loss") -> list[int]:
    """The steps of every point of a metric of the only MLflow run of this run."""
    return [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, key)]


def losses(uri: str, run_id: str) -> list[float]:
    """The losses in the store, in order; an AssertionError where a step is found twice."""
    points = history(uri, only_run(uri, run_id).info.run_id, "loss")
    assert [step for step, _, _ in points] == list(range(len(points)))
    return [value for _, value, _ in points]


def everything(uri: str, run_id: str) -> dict[str, Any]:
    """Everything that a delivery wrote, except what differs between two deliveries of one journal."""
    client = MlflowClient(uri)
    run = only_run(uri, run_id)
    mlflow_id = run.info.run_id
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "times": (run.info.start_time, run.info.end_time),
        "experiment": client.get_experiment(run.info.experiment_id).name,
        "params": run.data.params,
        "tags": {k: v for k, v in run.data.tags.items() if k not in PER_DELIVERY},
        "metrics": {key: history(uri, mlflow_id, key) for key in run.data.metrics if not is_system(key)},
        "datasets": [(i.dataset.name, i.dataset.digest) for i in run.inputs.dataset_inputs],
        "artifacts": artifacts(client, mlflow_id),
    }


def is_system(key: str) -> bool:
    """Whether a metric is of MLflow's monitor of the machine, which only a live delivery has."""
    return key.startswith("system/")


def expected_metrics(record: Record) -> dict[str, dict[int, float]]:
    """What MLflow must have of a Record that was delivered: {metric: {step: value}}."""
    lists = {
        f"{kind}.{name}": values
        for kind in ("steps", "phases", "metrics")
        for name, values in getattr(record, kind).items()
    }
    found = {
        metric_key(key): {
            step: _stored(metric_value(key, value)) for step, value in enumerate(values) if value is not None
        }
        for key, values in lists.items()
    }
    by_step = {key: points for key, points in found.items() if key is not None and points}
    return by_step | {key: {0: _stored(value)} for key, value in summary_metrics(record).items()}


def _stored(value: float) -> float:
    """The value as MLflow stores it: an infinity as the largest number; nan stays nan."""
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else float(value)


def artifacts(client: MlflowClient, run_id: str) -> dict[str, bytes]:
    """The artifacts' content by name."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(client.download_artifacts(run_id, "", folder))
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


class Death(BaseException):  # not an Exception, so that nothing catches it
    """The delivering process dies here."""


class DyingClient:
    """MLflow's own client, whose process dies at call number ``calls``, before or after it arrives."""

    def __init__(self, client: Any, calls: int, arrives: bool) -> None:
        self._client, self._calls, self._arrives = client, calls, arrives

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls -= 1
            if self._calls >= 0 or self._arrives:
                answer = getattr(self._client, name)(*args, **kwargs)
            if self._calls < 0:
                raise Death(name)
            return answer

        return call


@contextmanager
def dying(store: Store, calls: int, arrives: bool) -> Iterator[None]:
    """The process dies at this call to MLflow's client."""
    client: Any = store.client
    dying: Any = DyingClient(client, calls, arrives)
    store.client = dying
    try:
        yield
    finally:
        store.client = client
