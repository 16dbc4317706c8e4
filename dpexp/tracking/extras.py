"""Extras: what makes a run in MLflow pleasant to read, beyond its facts. None of it can fail a delivery.

Each takes (store, experiment id, MLflow run id, record), and called twice leaves what one call leaves.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from dpexp.record import Record
from dpexp.tracking import content
from dpexp.tracking.store import Store


def note(store: Store, experiment: str, run_id: str, record: Record) -> None:
    """The summary in words, on top of the run's page; beyond MLflow's limit whole in ``note.md``."""
    from dpexp import report

    del experiment
    text = report.note(record)
    if len(text) > content.MAX_TAG:
        store.client.log_text(run_id, text, "note.md")
        mark = "\n\n… (whole in note.md)"
        text = text[: content.MAX_TAG - len(mark)] + mark
    store.client.set_tag(run_id, "mlflow.note.content", text)


def dataset(store: Store, experiment: str, run_id: str, record: Record) -> None:
    """What the run was fed with, as MLflow's dataset input: runs on the same data share one."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    del experiment
    if not record.data:
        return
    digest = str(record.data.get("sha256") or _sha256(record.data))[:36]
    source = {"source": record.config.get("data"), "description": record.data.get("description")}
    made = Dataset(
        name=str(record.data.get("name") or record.config.get("data")),
        digest=digest,
        source_type="code",
        source=json.dumps(source),
        profile=json.dumps({"num_rows": record.data.get("samples")}),
    )
    context = [InputTag("mlflow.data.context", "eval" if record.config.get("eval") else "train")]
    store.client.log_inputs(run_id, datasets=[DatasetInput(made, context)])


def figures(store: Store, experiment: str, run_id: str, record: Record) -> None:
    """Timeline, phases, layout and the Chrome trace, drawn from the Record."""
    from dpexp import report

    del experiment
    with tempfile.TemporaryDirectory(prefix="dpexp-figures-") as folder:
        if report.write_files(record, Path(folder)):
            store.client.log_artifacts(run_id, folder)


def trace(store: Store, experiment: str, run_id: str, record: Record) -> None:
    """One to three steps as a trace, unless the run has one already."""
    from dpexp.tracking.traces import log_trace

    there = store.client.search_traces(locations=[experiment], run_id=run_id, max_results=1)
    if not there:
        log_trace(experiment, run_id, record, uri=store.uri)


def _sha256(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


Extra = Callable[[Store, str, str, Record], None]
WORDS: dict[str, Extra] = {"note": note, "dataset": dataset}
PICTURES: dict[str, Extra] = {"trace": trace, "figures": figures}
