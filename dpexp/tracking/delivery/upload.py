"""Upload: delivers one journal to one store, every point once.

A point that is sent again is the same row in MLflow, so after any doubt everything is sent again. MLflow
cannot remove points: where ranks restarted and the journal was cut, the MLflow run is deleted and a new one
gets every point. The tag ``dpexp.restarts`` says for how many restarts an MLflow run was made.
"""

import dataclasses
from pathlib import Path
from typing import Any

from dpexp.config import names
from dpexp.record.files import JournalError
from dpexp.record.journal import COMPARISON, JOURNAL, RECORD, is_open
from dpexp.record.record import Record, finish
from dpexp.record.view import RecordView
from dpexp.tracking.content import content, speed_ups
from dpexp.tracking.content.points import JournalPoints
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.delivery.mlflow_run import MlflowRun
from dpexp.tracking.errors import StoreError
from dpexp.tracking.process.uploader import Delivery
from dpexp.tracking.store.store import BATCH, Store

LOG = "uploader.log"
RESTARTS_TAG = "dpexp.restarts"
ATTEMPTS = 3  # to write the facts while another machine delivers the same run
PARENT_LOCK_TIMEOUT_S = 30.0


class Upload:
    """One run into one store.

    Every method may raise what the store raises; the next call then sends again what may be missing.
    """

    def __init__(self, store: Store, journal: Path) -> None:
        self.store = store
        self.journal = journal
        self.folder = journal.parent
        self._points = JournalPoints(journal)
        self._run: MlflowRun | None = None
        self._sent_to = ""
        self._restarts = 0

    def advance(self) -> MlflowRun | None:
        """Deliver what the journal holds and the store does not; returns the MLflow run, if there is one."""
        self._points.read()
        if not self._points.record.run_id:
            return None
        run = self.attach()
        try:
            while batch := self._points.next(BATCH):
                self.store.log_points(run.run_id, batch)
                self._points.sent(len(batch))
        except Exception:
            self._run = None  # it may have been deleted
            raise
        return run

    def attach(self) -> MlflowRun:
        """The MLflow run of this run, created if absent; another one than before gets every point."""
        if self._run is None or self._restarts != self._points.restarts:
            experiment = self.store.experiment_id(names.fitted(self._points.record.experiment, "dpexp"))
            self._run = self._from_ledger() or self._search(experiment) or self._create(experiment)
            self._restarts = self._points.restarts
            if self._run.run_id != self._sent_to:
                self._sent_to = self._run.run_id
                self._points.rewind()
                self._points.read()
        return self._run

    def _from_ledger(self) -> MlflowRun | None:
        """The run that the ledger names, if it still exists, and is that of this journal as it is now."""
        entry = ledger.read_ledger(self.folder).get(self.store.name)
        if entry is None:
            return None
        found = self.store.active_run(entry.mlflow_run_id, self._points.record.run_id)
        if not self._is_own(found):
            return None
        return MlflowRun(self.store, entry.experiment_id, entry.mlflow_run_id)

    def _search(self, experiment: str) -> MlflowRun | None:
        """The run with this run's id as a tag. Of several, by two machines, the first by its id stays."""
        query = f"tags.`{content.RUN_ID_TAG}` = '{self._points.record.run_id}'"
        found = self.store.client.search_runs([experiment], query, max_results=50)
        kept, *surplus = [*sorted(run.info.run_id for run in found if self._is_own(run)), ""]
        for run_id in filter(None, surplus):
            self.store.client.delete_run(run_id)
        return MlflowRun(self.store, experiment, kept) if kept else None

    def _is_own(self, found: Any) -> bool:
        """Whether there is such a run, made after the last restart; deletes an earlier one.

        Raises StoreError for a run that was made after a restart which this copy of the journal lacks.
        """
        if found is None:
            return False
        restarts = int(found.data.tags.get(RESTARTS_TAG, 0))
        if restarts == self._points.restarts:
            return True
        if restarts > self._points.restarts:
            raise StoreError(f"run {self.folder.name} has begun again since this copy of its journal")
        self.store.client.delete_run(found.info.run_id)
        return False

    def _create(self, experiment: str) -> MlflowRun:
        record = self._points.record
        user = names.fitted(record.environment.get("user") or "", "unknown")
        tags = {content.RUN_ID_TAG: record.run_id, "mlflow.user": user}
        if self._points.restarts:
            tags[RESTARTS_TAG] = str(self._points.restarts)
        if (parent := self._parent()) is not None:
            tags["mlflow.parentRunId"] = parent.run_id
        started, name = content.to_epoch_ms(record.started), names.fitted(record.name, record.run_id)
        created = self.store.client.create_run(experiment, start_time=started, tags=tags, run_name=name)
        made = MlflowRun(self.store, experiment, str(created.info.run_id))
        run = self._search(experiment) or made  # that of another machine, or of a call that seemed to fail
        ledger.write_entry(self.folder, self.store.name, LedgerEntry(experiment, run.run_id))
        run.write_config(record, run.stored())
        return run

    def _parent(self) -> MlflowRun | None:
        """The MLflow run of the sweep that this run belongs to, created if it was not delivered yet.

        None where the sweep is kept off the store, or cannot be read.
        """
        parent = ledger.parent_folder(self.folder, self._points.record)
        try:
            if parent is None or not ledger.is_tracked(parent, Record.load(parent)):
                return None
        except JournalError:  # there is none, or none that can be read
            return None
        upload = Upload(self.store, parent / JOURNAL)
        upload._points.read()
        with ledger.delivery_lock(parent, PARENT_LOCK_TIMEOUT_S):
            return upload.attach()

    def mark_running(self) -> None:
        """Set the status of a run that starts again back to running."""
        self._points.read()
        self.store.client.update_run(self.attach().run_id, status="RUNNING")

    def complete(self) -> Delivery:
        """Deliver everything: the facts, which end the MLflow run, and then the figures."""
        delivery = self.facts()
        return dataclasses.replace(delivery, message="; ".join([delivery.message, *self.figures()]))

    def facts(self) -> Delivery:
        """Deliver everything that is not drawn, and end the MLflow run."""
        from mlflow.exceptions import MlflowException

        for _ in range(ATTEMPTS - 1):
            try:
                return self._facts()
            except MlflowException as error:
                # A conflict: another process wrote the same tag or param after this one's query.
                is_conflict = "UNIQUE constraint" in str(error) or "UniqueViolation" in str(error)
                if not is_conflict and not self._was_replaced():
                    raise
        return self._facts()

    def _was_replaced(self) -> bool:
        """Whether the MLflow run was deleted: by a user, or by another machine that delivers the same run."""
        before, self._run = self._sent_to, None
        return self.attach().run_id != before

    def figures(self) -> list[str]:
        """Deliver what is drawn from the Record, which is slow. Returns what could not be drawn."""
        run, view = self.attach(), RecordView(Record.load(self.folder))
        problems = run.write_figures(view, self.folder / COMPARISON)
        entry = LedgerEntry(run.experiment_id, run.run_id, True, self._points.offset)
        ledger.write_entry(self.folder, self.store.name, entry)
        return problems

    def _facts(self) -> Delivery:
        if is_open(self.journal):
            raise StoreError(f"run {self.folder.name} has not ended: its process still writes the journal")
        has_record = (self.folder / RECORD).exists()
        record = Record.load(self.folder) if has_record else finish(self.journal)
        view = RecordView(record)
        self.advance()
        run = self.attach()
        data = run.stored()
        run.write_config(record, data, ledger.parent_tag(self.folder, record, self.store.name))
        run.write_summary(view, data.metrics)
        self.store.write_view(run.experiment_id)
        speed_ups.write_speed_ups(run, self.folder, record)
        run.write_files(record, self.folder / RECORD)
        problems = run.write_note(view)
        ended = content.to_epoch_ms(record.ended)
        self.store.client.set_terminated(run.run_id, record.status.upper(), ended)
        # Where another machine delivers it too, its run may be the one that stays.
        if self._search(run.experiment_id) not in (None, run):
            self._run = None
            return self.facts()
        where = self.store.where(run.experiment_id, run.run_id)
        return Delivery(True, "; ".join([where, *problems]), run.experiment_id, run.run_id)
