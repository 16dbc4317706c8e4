"""Deliver: one journal to one store: live, later, after a kill, by two processes at once.

What may be missing is sent, always. A point has the time of its journal line, so one that is sent again is
the same row of MLflow's table, and MLflow leaves it out::

    the MLflow run        found by its tag dpexp.run_id, or made
    points                after the byte that the ledger remembers, else those that the store lacks
    params, tags
    of an ended journal   the summary's metrics, tables, artifacts, note, data set, figures; last the status
"""

import shutil
import tempfile
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpexp import report
from dpexp.config import names
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE, JournalError
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import COMPARISON, JOURNAL, RECORD, RUN_ID
from dpexp.record.record import Record
from dpexp.record.redact import redact
from dpexp.record.view import RecordView
from dpexp.tracking import content, ledger
from dpexp.tracking.content import Point
from dpexp.tracking.ledger import Delivery, Entry
from dpexp.tracking.points import PointReader
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
        self.store, self.folder = store, folder
        self._reader = PointReader(folder / JOURNAL)
        self._sent = 0
        self._run: Any = None

    def send_points(self) -> Any:
        """Send the points that the store may lack; returns the MLflow run, None before the first line."""
        read = self._reader.read()
        if not self._reader.record.run_id:
            return None
        run = self._attached()
        points = self._lacking([(begin, point) for begin, point in read if begin >= self._sent])
        for first in range(0, len(points), BATCH):
            last = first + BATCH
            self.store.client.log_points(run.info.run_id, [point for _, point in points[first:last]])
            size = points[last][0] if last < len(points) else self._reader.offset
            remember(self.store, self.folder, run, size)
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

    def _attached(self) -> Any:
        """The MLflow run of this journal; the first call finds what the store has of it."""
        if self._run is None:
            self._run = mlflow_run(self.store, self.folder, self._reader.record)
            known = ledger.read(self.folder).get(self.store.name, Entry())
            if self._run.info.run_id == known.mlflow_run_id and not known.complete:
                self._sent = known.journal_bytes
        return self._run

    def complete(self) -> str:
        """Send everything; returns where it is, and what could not be drawn.

        Raises StoreError while the run goes on, JournalError where it cannot be read.
        """
        size, record = (self.folder / JOURNAL).stat().st_size, closed(self.folder)
        if record.status == "running":
            raise StoreError(f"run {self.folder.name} has not ended: its process still writes the journal")
        store, folder, view, run = self.store, self.folder, RecordView(record), self.send_points()
        run_id, experiment = run.info.run_id, run.info.experiment_id
        ended = content.to_epoch_ms(record.ended) or content.to_epoch_ms(record.started) or 0
        single = [Point(key, value, ended, 0) for key, value in content.summary_metrics(view).items()]
        store.client.log_points(run_id, [*single, *_speed_ups(store, folder, run, record)])
        _write_config(store, folder, run, view)
        remember(store, folder, run, size)
        problem = _write_artifacts(store, folder, run_id, view)
        store.client.set_terminated(run_id, record.status.upper(), content.to_epoch_ms(record.ended))
        if (kept := find(store, experiment, record.run_id)) is not None and kept.info.run_id != run_id:
            return Upload(store, folder).complete()  # another machine's run stays
        message = "; ".join(filter(None, [store.where(experiment, run_id), problem]))
        remember(store, folder, run, size, complete=True, message=message)
        return message


def mlflow_run(store: Store, folder: Path, record: Record) -> Any:
    """The MLflow run of a Record; it is made where it is missing, with its config."""
    experiment = store.experiment_id(names.fitted(record.experiment, "dpexp"))
    if (found := find(store, experiment, record.run_id)) is not None:
        return found
    user = names.fitted(record.environment.get("user") or "", "unknown")
    tags = {content.RUN_ID_TAG: record.run_id, "mlflow.user": user}
    started, name = content.to_epoch_ms(record.started), names.fitted(record.name, record.run_id)
    created = store.client.create_run(experiment, start_time=started, tags=tags, run_name=name)
    run = find(store, experiment, record.run_id) or created  # that of another machine may be there, too
    _write_config(store, folder, run, RecordView(record))
    remember(store, folder, run, 0)
    return run


def find(store: Store, experiment: str, run_id: str) -> Any:
    """The MLflow run of this run as it is now, None without one.

    Of several, which two machines made at once, the first by its id stays; the others are deleted.
    """
    query = f"tags.`{content.RUN_ID_TAG}` = '{run_id}'"
    found = {run.info.run_id: run for run in store.client.search_runs([experiment], query, max_results=50)}
    for mlflow_run_id in sorted(found)[1:]:
        store.client.delete_run(mlflow_run_id)
    return found[min(found)] if found else None


def remember(
    store: Store, folder: Path, run: Any, size: int, *, complete: bool = False, message: str = ""
) -> None:
    """Note in the ledger that the store has the points of the first ``size`` bytes, or everything."""
    entry = Entry(run.info.experiment_id, run.info.run_id, complete, size, message)
    ledger.write(folder, store.name, entry)


def _write_config(store: Store, folder: Path, run: Any, view: RecordView) -> None:
    """Write params that are missing, and tags."""
    params = content.fit(content.params(view.record), content.MAX_PARAM)
    tags = content.fit(content.tags(view), content.MAX_TAG)
    store.client.log_config(run, params, tags | _parent_tag(store, folder, view.record))


def _parent_tag(store: Store, folder: Path, record: Record) -> dict[str, str]:
    """The tag that makes a run a child of its sweep's MLflow run, which is created if it is missing."""
    sweep = sweep_of(folder, record)
    if sweep is None or not sweep.config.get("track", True):
        return {}
    parent = folder.with_name(sweep.run_id)
    with ledger.lock(parent):
        return {"mlflow.parentRunId": mlflow_run(store, parent, sweep).info.run_id}


def _speed_ups(store: Store, folder: Path, run: Any, record: Record) -> list[Point]:
    """The speed-up of this run, if its sweep knows it; for a sweep, write those of its runs."""
    points, query = content.speed_ups(record), f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
    for child in store.client.search_runs([run.info.experiment_id], query) if points else []:
        if (point := points.get(child.data.tags.get(content.RUN_ID_TAG, ""))) is not None:
            store.client.log_points(child.info.run_id, [point])
    known = content.speed_ups(sweep_of(folder, record) or Record())
    return [known[record.run_id]] if record.run_id in known else []


def _write_artifacts(store: Store, folder: Path, mlflow_run_id: str, view: RecordView) -> str:
    """Write data set, note and files. Returns what could not be made of this Record."""
    client, note, dataset, problem = store.client, "", {}, ""
    with tempfile.TemporaryDirectory(prefix="dpexp-") as name:
        files = Path(name)
        shutil.copyfile(folder / RECORD, files / RECORD)
        for file, text in content.tables(view.record).items():
            (files / file).write_text(text)
        try:
            dataset = content.dataset(view.record)
            note = content.truncate(report.note(view), content.MAX_TAG)
            report.write_files(view, files)
        except OSError:
            raise
        except Exception as error:  # whatever a figure fails on, the run itself is delivered
            problem = f"without all figures ({type(error).__name__}: {short_message(error)})"
        if dataset:
            client.log_dataset(mlflow_run_id, "eval" if view.record.config.get("eval") else "train", dataset)
        if note:
            client.set_tag(mlflow_run_id, "mlflow.note.content", note)
        client.log_artifacts(mlflow_run_id, name)
    for name in (PROFILE_TRACE, PROFILE_TABLE, COMPARISON):
        if (path := folder / name).exists():
            client.log_artifact(mlflow_run_id, str(path))
    return problem
