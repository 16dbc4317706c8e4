"""MlflowRun: writes a Record into one MLflow run. To write it twice has the effect of writing it once."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpexp import report
from dpexp.config import names
from dpexp.record.journal.journal import SWEEP_STRATEGY
from dpexp.record.journal.temporary_folder import temporary_folder
from dpexp.record.profiler_trace import PROFILER_TRACE, trace_of, wrong_trace
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.tracking.content import content, earlier, tables, traces
from dpexp.tracking.content.content import Point
from dpexp.tracking.errors import StoreError, short_message
from dpexp.tracking.store.store import BATCH, Store


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
        """Write the summary's numbers that differ from the stored metrics.

        A sweep keeps its MLflow run, and what version 1 wrote there is not left as it was before a resume.
        """
        record = view.record
        ended = content.to_epoch_ms(record.ended) or content.to_epoch_ms(record.started) or 0
        values, known = content.summary_metrics(view), _summary(stored)
        if record.strategy == SWEEP_STRATEGY:
            then = {key: value for key, value in earlier.summary_metrics(view).items() if key in stored}
            values, known = then | values, dict(stored)
        new = [
            Point(key, value, ended, 0)
            for key, value in values.items()
            if key not in known or not content.is_same_value(known[key], value)
        ]
        for start in range(0, len(new), BATCH):
            self.store.log_points(self.run_id, new[start : start + BATCH])

    def delete(self) -> None:
        """Delete the run and its traces, as a user does: MLflow can restore it."""
        self._delete_traces(self.stored_traces(()))
        self.store.client.delete_run(self.run_id)

    def _delete_traces(self, surplus: list[Any]) -> None:
        ids = [trace.info.trace_id for trace in surplus]
        if ids:
            self.store.client.delete_traces(self.experiment_id, trace_ids=ids)

    def write_files(self, record: Record, record_file: Path) -> None:
        """Write the tables, ``record.json``, and the profiler's trace where it is as the run wrote it."""
        texts = tables.record_tables(record)
        for name, text in texts.items():
            self.store.client.log_text(self.run_id, text, name)
        files = [record_file]
        if trace_of(record) and not wrong_trace(record_file.parent, record):
            files.append(record_file.with_name(PROFILER_TRACE))
        for file in files:
            self.store.client.log_artifact(self.run_id, str(file))
        self._confirm([*texts, *(file.name for file in files)])

    def write_note(self, view: RecordView) -> list[str]:
        """Write note and dataset. Returns what could not be written."""
        return _attempt(view, {"note": self._note, "dataset": self._dataset})

    def write_figures(self, view: RecordView, comparison: Path) -> list[str]:
        """Write what is drawn from the Record, and a sweep's comparison. Returns what could not be drawn."""
        if comparison.is_dir():
            self._log_files(comparison, comparison.name)
            self._confirm([comparison.name])
        return _attempt(view, {"trace": self._traces, "figures": self._figures})

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

    def _traces(self, view: RecordView) -> None:
        expected = traces.span_counts(view)
        if self._has_traces(expected):
            return
        self.store.bounded(lambda: traces.log_traces(self.store.uri, self.experiment_id, self.run_id, view))
        if not self._has_traces(expected):
            raise StoreError("traces are missing, or spans of them, which MLflow seemed to have stored")

    def _has_traces(self, expected: Mapping[str, int]) -> bool:
        """Whether each trace is there, with all its spans. Deletes what a delivery that was cut off left, and
        of those that two machines have stored the second by its id.
        """
        found = self.stored_traces(expected)  # also those which MLflow finds incomplete
        whole = self.stored_traces(expected, include_spans=True) if found else []
        spans = {each.info.trace_id: len(each.data.spans) for each in whole}
        kept: set[str] = set()
        surplus = []
        for trace in found:
            name = traces.name_of(trace)
            if name not in kept and spans.get(trace.info.trace_id) == expected.get(name, 0):
                kept.add(name)
            else:
                surplus.append(trace)
        self._delete_traces(surplus)
        return kept == expected.keys()

    def stored_traces(self, names: Collection[str], *, include_spans: bool = False) -> list[Any]:
        """The traces of this run that dpexp has stored, by their ids; of earlier versions, of these names.

        Users may have added others.
        """
        found: list[Any] = []
        token: str | None = ""
        while token is not None:
            page = self.store.client.search_traces(
                locations=[self.experiment_id], run_id=self.run_id, include_spans=include_spans,
                max_results=100, page_token=token or None,
            )  # fmt: skip
            found += (trace for trace in page if traces.is_own(trace) or traces.name_of(trace) in names)
            token = page.token
        return sorted(found, key=lambda trace: str(trace.info.trace_id))

    def _figures(self, view: RecordView) -> None:
        with temporary_folder("figures") as folder:
            if report.write_files(view, folder):
                self._log_files(folder)
                self._confirm(os.listdir(folder))

    def _log_files(self, folder: Path, within: str | None = None) -> None:
        """Write the files of a folder, one by one: MLflow's copy of a folder sets the times of the files that
        it replaces, which only their owner may, and in a shared home that may be another user.
        """
        for file in sorted(folder.iterdir()):
            self.store.client.log_artifact(self.run_id, str(file), within)

    def _confirm(self, names: Iterable[str]) -> None:
        """Raises StoreError where artifacts are not listed which an answer said were stored.

        Of other stores the artifacts are files, which have been copied here.
        """
        if not self.store.is_remote:
            return
        listed = {file.path for file in self.store.client.list_artifacts(self.run_id)}
        if missing := sorted(set(names) - listed):
            raise StoreError(
                f"artifacts are missing which an answer said were stored: {', '.join(missing)}: check what "
                "lies between, such as a proxy or a login page"
            )


def is_of_other_end(stored: Any, view: RecordView) -> bool:
    """Whether stored data have a param or a number of a summary that is not this Record's, from an earlier
    end of the run, or what an earlier version wrote under other names.
    """
    return (
        _has_other_params(stored.params, view.record)
        or _has_other_summary(stored.metrics, view)
        or earlier.has_version_1(stored.tags)
    )


def _summary(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that have one point, of the run's end."""
    return {key: value for key, value in metrics.items() if content.is_single(key)}


def _has_other_summary(metrics: Mapping[str, float], view: RecordView) -> bool:
    """Whether the store has a number of a summary that is not this Record's."""
    values = content.summary_metrics(view)
    return any(
        key not in values or not content.is_same_value(value, values[key])
        for key, value in _summary(metrics).items()
    )


def _has_other_params(params: Mapping[str, str], record: Record) -> bool:
    """Whether the store has a param with another value, or one that the Record has no more."""
    expected, _ = content.fit(content.params(record), content.MAX_PARAM)
    is_left = any(key in record.config and key not in expected for key in params)
    return is_left or any(params.get(key, value) != value for key, value in expected.items())


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
