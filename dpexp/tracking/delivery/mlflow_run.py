"""MlflowRun: writes a Record into one MLflow run. To write it twice has the effect of writing it once."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpexp import report
from dpexp.config import names
from dpexp.record.files import PROFILER_TRACE
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.tracking.content import content, tables
from dpexp.tracking.content.content import Point
from dpexp.tracking.errors import StoreError, short_message
from dpexp.tracking.store.store import Store


@dataclass(frozen=True)
class MlflowRun:
    """One run in a store. Every method may raise what the store raises."""

    store: Store
    experiment_id: str
    run_id: str

    def stored(self) -> Any:
        """The params, tags and last points that the store has now, as MLflow returns them."""
        return self.store.client.get_run(self.run_id).data

    def write_config(
        self, record: Record, data: Any, more_tags: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write params that are missing and tags that differ from the stored data; long values at full
        length into an artifact.
        """
        from mlflow.entities import Param, RunTag

        params, long_params = content.fit(content.params(record), content.MAX_PARAM)
        tags, long_tags = content.fit(content.tags(record), content.MAX_TAG)
        new_params = [Param(key, value) for key, value in params.items() if key not in data.params]
        all_tags = {**tags, **more_tags}
        new_tags = [RunTag(key, value) for key, value in all_tags.items() if data.tags.get(key) != value]
        if new_params or new_tags:
            self.store.client.log_batch(self.run_id, params=new_params, tags=new_tags)
        if long_params or long_tags:
            long_values = {"params": long_params, "tags": long_tags}
            self.store.client.log_dict(self.run_id, long_values, content.LONG_VALUES)

    def write_summary(self, view: RecordView, stored: Mapping[str, float]) -> None:
        """Write the summary's numbers that differ from the stored metrics."""
        record = view.record
        ended = content.to_epoch_ms(record.ended) or content.to_epoch_ms(record.started) or 0
        new = [
            Point(key, value, ended, 0)
            for key, value in content.summary_metrics(view).items()
            if key not in stored or not content.is_same_value(stored[key], value)
        ]
        if new:
            self.store.log_points(self.run_id, new)

    def write_files(self, record: Record, record_file: Path) -> None:
        """Write the tables, ``record.json``, and the profiler's trace where there is one."""
        for name, text in tables.record_tables(record).items():
            self.store.client.log_text(self.run_id, text, name)
        files = [record_file, record_file.with_name(PROFILER_TRACE)]
        for file in (file for file in files if file.exists()):
            self.store.client.log_artifact(self.run_id, str(file))

    def write_note(self, view: RecordView) -> list[str]:
        """Write note and dataset. Returns what could not be written."""
        return _attempt(view, {"note": self._note, "dataset": self._dataset})

    def write_figures(self, view: RecordView, comparison: Path) -> list[str]:
        """Write what is drawn from the Record, and a sweep's comparison. Returns what could not be drawn."""
        if comparison.is_dir():
            self.store.client.log_artifacts(self.run_id, str(comparison), comparison.name)
        return _attempt(view, {"figures": self._figures})

    def _note(self, view: RecordView) -> None:
        """The summary as text at the top of the run's page; a long one is complete in ``note.md``."""
        text = report.note(view)
        if len(text) > content.MAX_TAG:
            self.store.client.log_text(self.run_id, text, "note.md")
        note = content.truncate(text, content.MAX_TAG, "note.md")
        self.store.client.set_tag(self.run_id, "mlflow.note.content", note)

    def _dataset(self, view: RecordView) -> None:
        """The run's data as a dataset input of MLflow: runs on the same data share one dataset."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        record, data = view.record, view.record.data
        if not data:
            return
        known = json.dumps(data, sort_keys=True, default=str).encode()
        dataset = Dataset(
            name=names.fitted(data.get("name") or record.config.get("data"), "data"),
            digest=str(data.get("sha256") or hashlib.sha256(known).hexdigest())[:36],
            source_type="code",
            source=json.dumps({"source": record.config.get("data"), "description": data.get("description")}),
            profile=json.dumps({"num_rows": data.get("samples")}),
        )
        context = InputTag("mlflow.data.context", "eval" if record.config.get("eval") else "train")
        self.store.client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, [context])])

    def _figures(self, view: RecordView) -> None:
        with tempfile.TemporaryDirectory(prefix="dpexp-") as folder:
            if report.write_files(view, Path(folder)):
                self.store.client.log_artifacts(self.run_id, folder)


def _attempt(view: RecordView, writers: Mapping[str, Callable[[RecordView], None]]) -> list[str]:
    """Call each writer. Returns the errors that the Record's content caused; raises those of the store."""
    from mlflow.exceptions import MlflowException

    problems = []
    for name, write in writers.items():
        try:
            write(view)
        except (MlflowException, StoreError, OSError):  # the store's: the delivery is retried
            raise
        except Exception as error:  # whatever a figure fails on, the run itself is delivered
            problems.append(f"without its {name} ({type(error).__name__}: {short_message(error)})")
    return problems
