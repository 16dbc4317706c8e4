"""Upload: delivers one journal to one store, every point once.

The points of a metric are delivered in the order of their steps, so the last one that the store has says
where to continue, and whether the journal has taken it back since, and perhaps others before it. MLflow
cannot remove points: the MLflow run is then deleted, and a new one gets every point, and what users added
(see ``additions``). The store is queried
whenever that is in doubt: in a new process, when a run resumes, and after a call that failed and may have
arrived nevertheless. A point that arrives twice all the same is one row: see ``content``.
"""

import dataclasses
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from dpexp.config import names
from dpexp.record.journal.fold import load, load_closed
from dpexp.record.journal.journal import COMPARISON, JOURNAL, RECORD, SWEEP_STRATEGY, is_open
from dpexp.record.journal.seal import checksum
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.tracking.content import additions, content, speed_ups
from dpexp.tracking.content.content import Point
from dpexp.tracking.content.samples import MetricSamples, is_system
from dpexp.tracking.delivery import ledger, permission, stored
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.delivery.mlflow_run import MlflowRun, is_of_other_end
from dpexp.tracking.errors import StoreError
from dpexp.tracking.process.uploader import Delivery
from dpexp.tracking.store.store import BATCH, Store

LOG = "uploader.log"
ATTEMPTS = 3  # to write the facts while another machine delivers the same run
PARENT_LOCK_TIMEOUT_S = 30.0


class Upload:
    """One run into one store. ``fresh`` promises that the store cannot have the run yet.

    A run that is not tracked is delivered only where the user has ``named`` it (see ``permission``).
    Every method may raise what the store raises; the next call then continues where the store says.
    """

    def __init__(self, store: Store, journal: Path, *, fresh: bool = False, named: bool = False) -> None:
        self.store = store
        self.journal = journal
        self.folder = journal.parent
        self._may_exist = not fresh or store.is_remote
        self._named = named
        self._samples = MetricSamples(self.folder)
        self._run: MlflowRun | None = None
        self._is_over = False
        self._forget()

    def _forget(self) -> None:
        """The MLflow run is yet to be found, and what it has."""
        self._run = None
        self._last_steps: dict[str, int] = {}
        self._in_doubt = True
        self._is_behind = False  # the store has points of a longer copy of the journal

    @property
    def _record(self) -> Record:
        return self._samples.record

    def is_permitted(self) -> bool:
        """Whether the store may get this run."""
        if not self._record.run_id:
            self._read()
        return self._named or permission.may_deliver(self.folder, self._record, self.store.name)

    def advance(self) -> None:
        """Deliver what the journal holds and the store does not."""
        self._read()
        while self._record.run_id and self._send():
            pass

    def _read(self) -> None:
        self._in_doubt |= self._samples.read()

    def _send(self) -> bool:
        """Deliver the next batch; False when the store has every point that was read so far."""
        run = self.attach()  # of a new run the first points are the next
        batch = list(islice(self._points(), BATCH))
        if batch:
            self._in_doubt = True
            self.store.log_points(run.run_id, batch)
            self._in_doubt = False
        self._last_steps |= {point.key: point.step for point in batch}
        return bool(batch)

    def _points(self) -> Iterator[Point]:
        """The points that the store does not have; the machine's wait for the first step, or the end."""
        points = self._samples.points(self._last_steps)
        if self._is_over or any(self._record.steps.values()):
            return points
        return (point for point in points if not is_system(point.key))

    def attach(self) -> MlflowRun:
        """The MLflow run of this run, created if absent; ``_last_steps`` then agrees with the store.

        Raises StoreError for a run that is kept off the store.
        """
        if self._run is None:
            if not self.is_permitted():
                raise StoreError(f"run {self.folder.name} is not tracked: nothing is delivered")
            self._run = self._from_ledger() or self._find_or_create()
        if self._in_doubt:
            found = self.store.active_run(self._run.run_id, self._record.run_id)
            if found is None:  # a user deleted it, or another machine's run replaces it
                self._forget()
                self._may_exist = True
                return self.attach()
            latest = [Point(m.key, m.value, m.timestamp, int(m.step)) for m in found.data.to_proto().metrics]
            if any(map(self._samples.took_back, latest)):
                self.rebuild()
                return self.attach()
            self._is_behind = any(map(self._samples.is_behind, latest))
            self._last_steps = {point.key: point.step for point in latest}
            self._in_doubt = False
        return self._run

    def rebuild(self) -> None:
        """Delete the MLflow run, which has points that were taken back: the next call makes a new one."""
        if self._run is not None:
            additions.replace(self._run)
        self._forget()
        self._may_exist = True

    def _from_ledger(self) -> MlflowRun | None:
        """The run that the ledger names, if it still exists, and is that of this run."""
        entry = ledger.read_ledger(self.folder).get(self.store.name)
        if entry is None or self.store.active_run(entry.mlflow_run_id, self._record.run_id) is None:
            return None
        return MlflowRun(self.store, entry.experiment_id, entry.mlflow_run_id)

    def _find_or_create(self) -> MlflowRun:
        experiment = self._experiment()
        return self._search(experiment) or self._create(experiment)

    def _search(self, experiment: str) -> MlflowRun | None:
        """The run with this run's id as a tag. Of several, by two machines, the first by its id stays."""
        if not self._may_exist:
            return None
        query = f"tags.`{content.RUN_ID_TAG}` = '{self._record.run_id}'"
        runs = self.store.client.search_runs([experiment], query, max_results=50)
        run_ids = sorted(run.info.run_id for run in runs)
        for surplus in run_ids[1:]:
            self.store.client.delete_run(surplus)
        return MlflowRun(self.store, experiment, run_ids[0]) if run_ids else None

    def _create(self, experiment: str) -> MlflowRun:
        record = self._record
        user = names.fitted(record.environment.get("user") or "", "unknown")
        tags = {content.RUN_ID_TAG: record.run_id, "mlflow.user": user}
        parent = self._parent()
        if parent is not None:
            tags["mlflow.parentRunId"] = parent.run_id
        started, name = content.to_epoch_ms(record.started), names.fitted(record.name, record.run_id)
        created = self.store.client.create_run(experiment, start_time=started, tags=tags, run_name=name)
        made = MlflowRun(self.store, experiment, str(created.info.run_id))
        run = self._search(experiment) or made  # another machine's, or that of a call that seemed to fail
        entry = LedgerEntry(experiment, run.run_id, journal_bytes=self.journal.stat().st_size)
        ledger.write_entry(self.folder, self.store.name, entry)
        run.write_config(record, created.data if run == made else run.stored())
        return run

    def _experiment(self) -> str:
        return self.store.experiment_id(names.fitted(self._record.experiment, "dpexp"))

    def _parent(self) -> MlflowRun | None:
        """The MLflow run of the sweep that this run belongs to, created if it was not delivered yet.

        None where the sweep is kept off the store.
        """
        parent = ledger.parent_folder(self.folder, self._record)
        if parent is None or not (parent / JOURNAL).exists():
            return None
        upload = Upload(self.store, parent / JOURNAL)
        with ledger.delivery_lock(parent, PARENT_LOCK_TIMEOUT_S):
            return upload.attach() if upload.is_permitted() else None

    def mark_running(self) -> None:
        """Set a resumed run's status back to running."""
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
                is_conflict = "UniqueViolation" in str(error) or "UNIQUE constraint" in str(error)
                if not is_conflict and not self._was_replaced():
                    raise
                self._in_doubt = True
        return self._facts()

    def figures(self) -> list[str]:
        """Deliver what is drawn from the Record, which is slow. Returns what could not be drawn."""
        run, view = self.attach(), RecordView(load(self.folder))
        problems = run.write_figures(view, self.folder / COMPARISON)
        now, points = checksum(self.journal), stored.points_crc(self.store, run.run_id, view)
        entry = LedgerEntry(run.experiment_id, run.run_id, True, now["bytes"], now["crc"], points)
        ledger.write_entry(self.folder, self.store.name, entry)
        return problems

    def _without_other_end(self, view: RecordView) -> tuple[MlflowRun, Any]:
        """The run and its stored data, rebuilt if it has params or the summary of an earlier end, after which
        it was resumed, or what an earlier version wrote.

        A sweep keeps its MLflow run, which is the parent of others.
        """
        run = self.attach()
        data = run.stored()
        if view.record.strategy == SWEEP_STRATEGY or self._is_behind or not is_of_other_end(data, view):
            return run, data
        self.rebuild()
        self.advance()
        run = self.attach()
        return run, run.stored()

    def _was_replaced(self) -> bool:
        """Whether the MLflow run was deleted: by a user, or by another machine that delivers the same run."""
        self._in_doubt, before = True, self._run
        return before is not None and self.attach() != before

    def _facts(self) -> Delivery:
        if is_open(self.journal):
            raise StoreError(f"run {self.folder.name} has not ended: its process still writes the journal")
        record = load_closed(self.folder)
        view, self._is_over = RecordView(record), True
        self._read()
        run = self.attach()
        if not self._last_steps:  # it has no points
            run.write_summary(view, {})
        self.advance()
        run, data = self._without_other_end(view)
        run.write_config(record, data, ledger.parent_tag(self.folder, record, self.store.name))
        run.write_summary(view, data.metrics)
        self.store.write_view(run.experiment_id)
        speed_ups.write_speed_ups(run, self.folder, record)
        if self._may_exist:
            additions.copy(run, record, self._samples)
        run.write_files(record, self.folder / RECORD)
        problems = run.write_note(view)
        ended = content.to_epoch_ms(record.ended)
        self.store.client.set_terminated(run.run_id, record.status.upper(), ended)
        # Where another machine delivers it too, its run may be the one that stays.
        if self._search(run.experiment_id) not in (None, run):
            self._forget()
            return self.facts()
        where = self.store.where(run.experiment_id, run.run_id)
        return Delivery(True, "; ".join([where, *problems]), run.experiment_id, run.run_id)
