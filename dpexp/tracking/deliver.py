"""Deliver: one journal to one store: live, later, after a kill, by two processes at once.

What may be missing is sent, always. A point has the time of its journal line, so one that is sent again is
the same row of MLflow's table, and MLflow leaves it out::

    the MLflow run        found by its tag dpexp.run_id, or made
    points                after the byte that the ledger remembers, else those that the store lacks
    params, tags
    of an ended journal   the summary's metrics, tables, artifacts, note, data set, figures; last the status
"""

import hashlib
import json
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpexp import report
from dpexp.config import names
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE, JournalError
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import COMPARISON, JOURNAL, RECORD, RUN_ID, JournalReader
from dpexp.record.record import NOT_OF_DPEXP, Record, Row
from dpexp.record.redact import redact
from dpexp.record.view import RecordView
from dpexp.tracking import content, ledger
from dpexp.tracking.content import Point
from dpexp.tracking.ledger import Delivery, Entry
from dpexp.tracking.store import Store, StoreError, short_message

BATCH = 1000
"""Points a call: the limit of MLflow's log_batch."""
ATTEMPTS = 3
"""Another machine may write the same tag, or delete the MLflow run of two that it does not keep."""
LOG = "delivery.log"


def deliver(store: Store, folder: Path) -> Delivery:
    """Deliver a journal that has ended; how that went, whatever was raised, which the ledger has, too.

    The caller holds the run's lock.
    """
    message = ""
    for _ in range(ATTEMPTS):
        try:
            store.open()
            return Delivery(True, Upload(store, folder).complete())
        except Exception as error:  # any store, any driver
            message = note_error(store, folder, error)
            if isinstance(error, StoreError | JournalError):
                break
    return Delivery(False, message)


def note_error(store: Store, folder: Path, error: Exception) -> str:
    """Note an error in the log and the ledger, which is sure of nothing then; returns it as one line."""
    entry, message = ledger.read(folder).get(store.name, Entry()), short_message(error)
    with suppress(OSError):  # the disk may be full
        ledger.write(folder, store.name, replace(entry, complete=False, journal_bytes=0, message=message))
        with (folder / LOG).open("a") as log:
            log.write(redact("".join(traceback.format_exception(error))))
    return message


def closed(folder: Path) -> Record:
    """The Record of a run that has ended; ``record.json`` is written if missing. Raises JournalError."""
    return load_record(folder) if (folder / RECORD).exists() else finish(folder / JOURNAL)


def sweep_of(folder: Path, record: Record) -> Record | None:
    """The Record of the sweep that a run belongs to; None without one, or for a name that leads elsewhere."""
    if RUN_ID.fullmatch(record.parent) and record.parent != folder.name:
        with suppress(JournalError):
            return load_record(folder.with_name(record.parent))
    return None


def is_tracked(folder: Path, record: Record) -> bool:
    """Whether a run is delivered though no one names it: what its sweep's config says, else its own."""
    own = record.config.get("track", True)
    return bool(getattr(sweep_of(folder, record), "config", {}).get("track", own))


class Upload:
    """One journal into one store.

    Every method may raise what the store raises. After ``note_error`` a new Upload sends the rest.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder, self.record = store, folder, Record()
        self._reader = JournalReader(self.folder / JOURNAL)
        self._lengths: dict[str, int] = {}
        self._keys: dict[str, str | None] = {}  # of MLflow, by list of the Record
        self._read: list[tuple[int, Point]] = []  # each with the byte at which its line begins
        self._sent = 0
        self._run: Any = None

    def send_points(self) -> Any:
        """Send the points that the store may lack; returns the MLflow run, None before the first line."""
        self._read_lines()
        if not self.record.run_id:
            return None
        run = self._attach()
        points = self._lacking([(begin, point) for begin, point in self._read if begin >= self._sent])
        for first in range(0, len(points), BATCH):
            last = first + BATCH
            self._log_points([point for _, point in points[first:last]])
            self._remember(points[last][0] if last < len(points) else self._reader.offset)
        self._read.clear()
        self._sent = self._reader.offset
        return run

    def _lacking(self, points: list[tuple[int, Point]]) -> list[tuple[int, Point]]:
        """Those that the store lacks, where that is not known: MLflow takes 1 ms for each that is there."""
        if self._sent or not points:
            return points
        client, run = self.store.client, self._run
        keys = {point.key for _, point in points} & run.data.metrics.keys()
        known = [each for key in keys for each in client.get_metric_history(run.info.run_id, key)]
        stored = {(each.key, each.step, each.timestamp) for each in known}
        return [each for each in points if (each[1].key, each[1].step, each[1].timestamp) not in stored]

    def _log_points(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        self.store.client.log_batch(self._run.info.run_id, metrics=[Metric(*point) for point in points])

    def _read_lines(self) -> None:
        """Read what was appended."""
        begin = self._reader.offset
        for entry in self._reader:
            with suppress(*NOT_OF_DPEXP):  # `fold` counts the line
                self.record.apply(entry)
                self._read += [(begin, point) for point in self._points(entry)]
            begin = self._reader.offset

    def _points(self, entry: Row) -> Iterator[Point]:
        """The points of a line."""
        at = max(0, int(entry.get("at", 0)))  # MLflow has no time before 1970
        if "started" in entry.get("set", {}):
            yield from content.placeholders(self.record, at)
        for key, start, values in self._lists(entry):
            name = self._metric(key)
            for step, value in enumerate(values if name else [], start):
                if isinstance(value, int | float):
                    yield Point(str(name), content.metric_value(key, value), at, step)

    def _lists(self, entry: Row) -> Iterator[tuple[str, int, list[Any]]]:
        """(key, first step, values) of the lists that a line extends, or sets, as those in ``phases``."""
        lists: Row = dict(entry.get("extend", {}))
        for key, value in entry.get("set", {}).items():
            if isinstance(value, dict):
                lists |= {f"{key}.{name}": each for name, each in value.items() if isinstance(each, list)}
        for key, values in lists.items():
            start = self._lengths.get(key, 0) if key in entry.get("extend", {}) else 0
            self._lengths[key] = start + len(values)
            yield key, start, values

    def _metric(self, list_key: str) -> str | None:
        """The metric of a list: the same one in every delivery, as lists come in the journal's order."""
        if list_key not in self._keys:
            self._keys[list_key] = content.metric_key(list_key, self._keys.values())
        return self._keys[list_key]

    def _attach(self) -> Any:
        """The MLflow run of this journal, with what the ledger knows of it."""
        if self._run is None:
            experiment = self.store.experiment_id(names.fitted(self.record.experiment, "dpexp"))
            self._run = self._find(experiment) or self._create(experiment)
            known = ledger.read(self.folder).get(self.store.name, Entry())
            if self._run.info.run_id == known.mlflow_run_id and not known.complete:
                self._sent = known.journal_bytes
        return self._run

    def _find(self, experiment: str) -> Any:
        """The MLflow run of this journal as it is now, None without one.

        Of several, which two machines made at once, the first by its id stays; the others are deleted.
        """
        query = f"tags.`{content.RUN_ID_TAG}` = '{self.record.run_id}'"
        found = list(self.store.client.search_runs([experiment], query, max_results=50))
        for run in sorted(found, key=lambda run: run.info.run_id)[1:]:
            self.store.client.delete_run(run.info.run_id)
        return min(found, key=lambda run: run.info.run_id, default=None)

    def _create(self, experiment: str) -> Any:
        record = self.record
        user = names.fitted(record.environment.get("user") or "", "unknown")
        tags = {content.RUN_ID_TAG: record.run_id, "mlflow.user": user}
        started, name = content.to_epoch_ms(record.started), names.fitted(record.name, record.run_id)
        created = self.store.client.create_run(experiment, start_time=started, tags=tags, run_name=name)
        self._run = self._find(experiment) or created  # that of another machine may be there, too
        self._write_config(RecordView(record))
        self._remember(0)
        return self._run

    def _write_config(self, view: RecordView) -> None:
        """Write params that are missing, and tags."""
        from mlflow.entities import Param, RunTag

        params = content.fit(content.params(view.record), content.MAX_PARAM)
        tags = content.fit(content.tags(view), content.MAX_TAG) | self._parent_tag()
        self.store.client.log_batch(
            self._run.info.run_id,
            params=[Param(*item) for item in params.items() if item[0] not in self._run.data.params],
            tags=[RunTag(*item) for item in tags.items()],
        )

    def _parent_tag(self) -> dict[str, str]:
        """The tag that makes a run a child of its sweep's MLflow run, which is created if it is missing."""
        sweep = sweep_of(self.folder, self.record)
        if sweep is None or not sweep.config.get("track", True):
            return {}
        parent = Upload(self.store, self.folder.with_name(sweep.run_id))
        parent._read_lines()
        with ledger.lock(parent.folder):
            return {"mlflow.parentRunId": parent._attach().info.run_id}

    def _remember(self, size: int, *, complete: bool = False, message: str = "") -> None:
        info = self._run.info
        entry = Entry(info.experiment_id, info.run_id, complete, size, message)
        ledger.write(self.folder, self.store.name, entry)

    def complete(self) -> str:
        """Send everything; returns where it is, and what could not be drawn.

        Raises StoreError while the run goes on, JournalError where it cannot be read.
        """
        size, record = (self.folder / JOURNAL).stat().st_size, closed(self.folder)
        if record.status == "running":
            raise StoreError(f"run {self.folder.name} has not ended: its process still writes the journal")
        client, view, run = self.store.client, RecordView(record), self.send_points()
        run_id, experiment = run.info.run_id, run.info.experiment_id
        ended = content.to_epoch_ms(record.ended) or content.to_epoch_ms(record.started) or 0
        single = [Point(key, value, ended, 0) for key, value in content.summary_metrics(view).items()]
        self._log_points([*single, *self._speed_ups(record)])
        self._write_config(view)
        self._remember(size)
        problem = self._write_artifacts(view)
        client.set_terminated(run_id, record.status.upper(), content.to_epoch_ms(record.ended))
        if (kept := self._find(experiment)) is not None and kept.info.run_id != run_id:
            return Upload(self.store, self.folder).complete()  # another machine's run stays
        message = "; ".join(filter(None, [self.store.where(experiment, run_id), problem]))
        self._remember(size, complete=True, message=message)
        return message

    def _speed_ups(self, record: Record) -> list[Point]:
        """The speed-up of this run, if its sweep knows it; for a sweep, write those of its runs."""
        from mlflow.entities import Metric

        points, info = content.speed_ups(record), self._run.info
        query = f"tags.`mlflow.parentRunId` = '{info.run_id}'"
        for run in self.store.client.search_runs([info.experiment_id], query) if points else []:
            if (point := points.get(run.data.tags.get(content.RUN_ID_TAG, ""))) is not None:
                self.store.client.log_batch(run.info.run_id, metrics=[Metric(*point)])
        known = content.speed_ups(sweep_of(self.folder, record) or Record())
        return [known[record.run_id]] if record.run_id in known else []

    def _write_artifacts(self, view: RecordView) -> str:
        """Write data set, note and files. Returns what could not be made of this Record."""
        from mlflow.exceptions import MlflowException

        client, run_id, problem = self.store.client, self._run.info.run_id, ""
        with tempfile.TemporaryDirectory(prefix="dpexp-") as name:
            folder = Path(name)
            shutil.copyfile(self.folder / RECORD, folder / RECORD)
            for file, text in content.tables(view.record).items():
                (folder / file).write_text(text)
            try:
                self._write_dataset(view.record)
                note = content.truncate(report.note(view), content.MAX_TAG)
                client.set_tag(run_id, "mlflow.note.content", note)
                report.write_files(view, folder)
            except (MlflowException, OSError):
                raise
            except Exception as error:  # whatever a figure fails on, the run itself is delivered
                problem = f"without all figures ({type(error).__name__}: {short_message(error)})"
            client.log_artifacts(run_id, name)
        for name in (PROFILE_TRACE, PROFILE_TABLE, COMPARISON):
            if (path := self.folder / name).exists():
                client.log_artifact(run_id, str(path))
        return problem

    def _write_dataset(self, record: Record) -> None:
        """The run's data as a dataset input of MLflow: runs on the same data share one dataset."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = record.data
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
        self.store.client.log_inputs(self._run.info.run_id, datasets=[DatasetInput(dataset, [context])])
