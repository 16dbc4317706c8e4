"""Reads everything that an MLflow store has of a run, with MLflow's own client."""

import math
import tempfile
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient
from mlflow.utils.file_utils import local_file_uri_to_path

from dpexp.record.record import Record
from dpexp.tracking.content.content import metric_key, stored_value, summary_metrics

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
    return sorted((p.step, "nan" if math.isnan(p.value) else p.value, p.timestamp) for p in points)


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
        metric_key(key): {step: stored_value(value) for step, value in enumerate(values) if value is not None}
        for key, values in lists.items()
    }
    by_step = {key: points for key, points in found.items() if key is not None and points}
    return by_step | {key: {0: stored_value(value)} for key, value in summary_metrics(record).items()}


def artifacts(client: MlflowClient, run_id: str) -> dict[str, bytes]:
    """The artifacts' content by name."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(client.download_artifacts(run_id, "", folder))
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
