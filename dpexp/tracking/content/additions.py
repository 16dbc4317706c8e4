"""Additions: what an MLflow run has that a delivery cannot write again, copied when a new run replaces it.

That is what users add in MLflow (metrics, tags, params), and samples of the machine that ``system.jsonl``
has lost. A run that is replaced gets the tag ``dpexp.replaced`` and is deleted, which keeps it readable. So
the copy can be made at any time after, by another process too, and to copy twice has the effect of once.
"""

import time
from collections.abc import Iterator
from typing import Any

from dpexp.record.record import Record
from dpexp.tracking.content import content, earlier
from dpexp.tracking.content.content import Point
from dpexp.tracking.content.samples import MetricSamples, is_system
from dpexp.tracking.delivery.mlflow_run import MlflowRun
from dpexp.tracking.store.store import BATCH

REPLACED = "dpexp.replaced"


def replace(run: MlflowRun) -> None:
    """Delete a run whose additions the next one of the same journal gets."""
    run.store.client.set_tag(run.run_id, REPLACED, str(time.time_ns()))
    run.delete()


def copy(run: MlflowRun, record: Record, samples: MetricSamples) -> None:
    """Write the additions of the runs that this one replaces; of a tag or param the latest."""
    replaced = _replaced(run, record)
    if not replaced:
        return
    known = run.store.client.get_run(run.run_id).data
    tags: dict[str, str] = {}
    params: dict[str, str] = {}
    for old in replaced:
        tags = {key: value for key, value in old.data.tags.items() if not content.is_own_tag(key)} | tags
        params = {key: value for key, value in old.data.params.items() if key not in record.config} | params
    points = list(dict.fromkeys(point for old in replaced for point in _points(run, old, record, samples)))
    _write(run, points, _without(tags, known.tags), _without(params, known.params))


def _replaced(run: MlflowRun, record: Record) -> list[Any]:
    """The replaced runs as MLflow returns them, the latest first."""
    from mlflow.entities import ViewType

    query = f"tags.`{content.RUN_ID_TAG}` = '{record.run_id}' AND tags.`{REPLACED}` != ''"
    found = run.store.client.search_runs([run.experiment_id], query, ViewType.DELETED_ONLY, max_results=50)
    return sorted(found, key=lambda old: int(old.data.tags[REPLACED]), reverse=True)


def _points(run: MlflowRun, old: Any, record: Record, samples: MetricSamples) -> Iterator[Point]:
    """The points of a replaced run that its journal and ``system.jsonl`` cannot give."""
    held = samples.system()
    for key in old.data.metrics:
        if _is_own(record, key) and not is_system(key):
            continue
        for point in run.store.client.get_metric_history(old.info.run_id, key):
            step, timestamp = int(point.step), int(point.timestamp)
            if (step, timestamp) not in held.get(key, {}):
                yield Point(key, point.value, timestamp, step)


def _is_own(record: Record, key: str) -> bool:
    """Whether a delivery wrote this metric, of this version or of the one before."""
    return content.is_own_metric(record, key) or earlier.is_own_metric(record, key)


def _without(values: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key not in known}


def _write(run: MlflowRun, points: list[Point], tags: dict[str, str], params: dict[str, str]) -> None:
    from mlflow.entities import Param, RunTag

    for start in range(0, len(points), BATCH):
        run.store.log_points(run.run_id, points[start : start + BATCH])
    if tags or params:
        run.store.client.log_batch(
            run.run_id,
            params=[Param(key, value) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
