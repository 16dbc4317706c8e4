"""Upload: one journal on its way into one store, every point once.

The store itself says how far it is. Points are delivered in the order of their steps, so the latest step
that the store has of a metric is the cursor from which to go on; it is asked for whenever that is in
doubt (a new process, a call that failed and may have arrived all the same). What arrives twice
nevertheless, from a request that was given up too early or from two machines at once, is the same row of
the store: see ``content``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from dpexp.record import RECORD, JournalReader, Record, finish, is_open, load
from dpexp.tracking import content, ledger
from dpexp.tracking.content import Point
from dpexp.tracking.errors import GoneError, StoreError
from dpexp.tracking.extras import PICTURES, WORDS, Extra
from dpexp.tracking.store import Store, describe
from dpexp.tracking.uploader import Delivery

SYSTEM = "system.jsonl"
TRIES = 3
"""How often the facts are begun anew where another machine delivers the same run at the same moment."""


class Upload:
    """One run into one store. ``fresh`` promises that nobody can have delivered it before.

    Every method may raise what the store raises; the next call then goes on where the store says it is.
    """

    def __init__(self, store: Store, journal: Path, *, fresh: bool = False) -> None:
        self.store = store
        self.journal = journal
        self.folder = journal.parent
        self._alone = fresh and not store.is_remote
        self._begin()

    def _begin(self) -> None:
        self._record = Record()
        self._tails = [JournalReader(self.journal), JournalReader(self.folder / SYSTEM)]
        self._unread = self._read()
        self._pending: list[Point] = []
        self._cursor: dict[str, int] = {}
        self._run: tuple[str, str] | None = None
        self._in_doubt = True

    # --- while the run goes on -------------------------------------------------------------------

    def advance(self) -> None:
        """Deliver what the journal holds and the store does not."""
        while self._fill():
            self._send()
        if self._record.run_id:
            self.attach()

    def _fill(self) -> list[Point]:
        """The next batch; empty when everything written so far was read."""
        self._pending += islice(self._unread, self.store.batch - len(self._pending))
        if len(self._pending) < self.store.batch:
            self._unread = self._read()
            self._pending += islice(self._unread, self.store.batch - len(self._pending))
        return self._pending

    def _read(self) -> Iterator[Point]:
        """The points that were not read yet; other facts are folded into ``_record`` on the way."""
        journal, system = self._tails
        for entry in journal:
            with contextlib.suppress(ValueError):  # what fits no Record is reported by `fold`
                self._record.apply({"set": entry.get("set", {})})
            yield from content.points(entry)
        with contextlib.suppress(FileNotFoundError):
            for entry in system:
                yield from content.points(entry)

    def _send(self) -> None:
        """Deliver the pending points: of a run that is gone and begun anew, its first ones."""
        _, run_id = self.attach()
        new = [point for point in self._pending if point.step > self._cursor.get(point.key, -1)]
        if new:
            self._in_doubt = True
            self.store.log(run_id, new)
            self._in_doubt = False
        for point in new:
            self._cursor[point.key] = point.step
        self._pending = []

    # --- the MLflow run --------------------------------------------------------------------------

    def attach(self) -> tuple[str, str]:
        """(experiment id, MLflow run id) of this run, made where there is none; the cursor is then true."""
        if not self._record.run_id:
            self._fill()
        if self._run is None:
            self._run = self._known() or self._found() or self._made()
        if self._in_doubt:
            run = self.store.client.get_run(self._run[1])
            if run.info.lifecycle_stage != "active":  # another machine was first, or a user deleted it
                self._begin()
                self._alone = False
                return self.attach()
            self._cursor = {m.key: int(m.step) for m in run.data.to_proto().metrics}
            self._in_doubt = False
        return self._run

    def _known(self) -> tuple[str, str] | None:
        """The run that the ledger names, if it is still there."""
        from mlflow.exceptions import MlflowException

        account = ledger.read(self.folder).get(self.store.name)
        if account is None:
            return None
        try:
            run = self.store.client.get_run(account.mlflow_run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return (
            (account.experiment_id, account.mlflow_run_id) if run.info.lifecycle_stage == "active" else None
        )

    def _found(self) -> tuple[str, str] | None:
        """The run that carries this run's id: of several (two machines at once) the first, by its id."""
        if self._alone:
            return None
        experiment = self._experiment()
        found = sorted(
            run.info.run_id
            for run in self.store.client.search_runs(
                [experiment], f"tags.`dpexp.run_id` = '{self._record.run_id}'", max_results=50
            )
        )
        for surplus in found[1:]:
            self.store.client.delete_run(surplus)
        return (experiment, found[0]) if found else None

    def _made(self) -> tuple[str, str]:
        record = self._record
        tags = {
            "dpexp.run_id": record.run_id,
            "mlflow.user": str(record.environment.get("user") or "unknown"),
        }
        parent = self._parent()
        if parent:
            tags["mlflow.parentRunId"] = parent
        experiment = self._experiment()
        run = self.store.client.create_run(
            experiment,
            start_time=content.millis(record.started),
            tags=tags,
            run_name=record.name or record.run_id,
        )
        made = (experiment, str(run.info.run_id))
        made = self._found() or made  # another machine at the same moment, or a call that seemed to fail
        ledger.write(self.folder, self.store.name, ledger.Account(*made))
        self._describe(made[1], self._record)
        return made

    def _experiment(self) -> str:
        return self.store.experiment_id(self._record.experiment or "dpexp")

    def _parent(self) -> str | None:
        """The MLflow run of the sweep that this run belongs to, made if its own delivery is still to come."""
        if not self._record.parent:
            return None
        journal = self.folder.with_name(self._record.parent) / "journal.jsonl"
        if not journal.exists():
            return None
        with ledger.delivering(journal.parent, wait_s=30):
            return Upload(self.store, journal).attach()[1]

    def go_on(self) -> None:
        """A run that had ended goes on: it is running again."""
        self.store.client.update_run(self.attach()[1], status="RUNNING")

    # --- when the run is over --------------------------------------------------------------------

    def complete(self) -> Delivery:
        """Deliver all of it: the facts, which end the MLflow run, and then the pictures."""
        self.facts()
        return self.pictures()

    def facts(self) -> Delivery:
        """Deliver everything that the Record says, and end the MLflow run."""
        from mlflow.exceptions import MlflowException

        for _ in range(TRIES - 1):
            try:
                return self._facts()
            except (MlflowException, GoneError) as error:
                if not _collided(error) and not self._is_gone():
                    raise
                self._in_doubt = True
        return self._facts()

    def pictures(self) -> Delivery:
        """Deliver what is drawn from the Record: slow, and of no account to whoever waits for the facts."""
        experiment, run_id = self.attach()
        problems = self._extras(PICTURES, experiment, run_id, load(self.folder))
        size = self.journal.stat().st_size
        ledger.write(self.folder, self.store.name, ledger.Account(experiment, run_id, True, size))
        where = self.store.where(experiment, run_id)
        return Delivery(True, "; ".join([where, *problems]), experiment, run_id)

    def _is_gone(self) -> bool:
        """Whether another machine that delivers this run as well was first, and deleted this MLflow run."""
        self._in_doubt, before = True, self._run
        return before is not None and self.attach() != before

    def _facts(self) -> Delivery:
        if is_open(self.journal):
            raise StoreError(f"run {self.folder.name} is not over: its writer is at work")
        closed = (self.folder / RECORD).exists()
        record = load(self.folder) if closed else finish(self.journal)
        self.advance()
        experiment, run_id = self.attach()
        self._describe(run_id, record)
        self._single_figures(run_id, record)
        self._files(run_id, record)
        problems = self._extras(WORDS, experiment, run_id, record)
        self.store.client.set_terminated(run_id, content.status(record), content.millis(record.ended))
        if self._found() not in (None, (experiment, run_id)):
            self._begin()  # another machine delivers it too, and was first
            return self.facts()
        where = self.store.where(experiment, run_id)
        return Delivery(True, "; ".join([where, *problems]), experiment, run_id)

    def _describe(self, run_id: str, record: Record) -> None:
        """Params and tags that are not there yet, the long ones whole in an artifact."""
        from mlflow.entities import Param, RunTag

        there = self.store.client.get_run(run_id).data
        params, long_params = content.fitted(content.params(record), content.MAX_PARAM)
        tags, long_tags = content.fitted(content.tags(record), content.MAX_TAG)
        new_params = [Param(key, value) for key, value in params.items() if key not in there.params]
        new_tags = [RunTag(key, value) for key, value in tags.items() if there.tags.get(key) != value]
        for start in range(0, max(len(new_params), len(new_tags)), 100):
            self.store.client.log_batch(
                run_id, params=new_params[start : start + 100], tags=new_tags[start : start + 100]
            )
        if long_params or long_tags:
            self.store.client.log_dict(
                run_id, {"params": long_params, "tags": long_tags}, content.LONG_VALUES
            )

    def _single_figures(self, run_id: str, record: Record) -> None:
        at = content.millis(record.ended) or content.millis(record.started) or 0
        there = self.store.client.get_run(run_id).data.metrics
        figures = content.figures(record).items()
        new = [Point(key, value, at, 0) for key, value in figures if content.differs(there.get(key), value)]
        for start in range(0, len(new), self.store.batch):
            self.store.log(run_id, new[start : start + self.store.batch])

    def _files(self, run_id: str, record: Record) -> None:
        for name, text in content.tables(record).items():
            self.store.client.log_text(run_id, text, name)
        self.store.client.log_artifact(run_id, str(self.folder / RECORD))

    def _extras(self, extras: Mapping[str, Extra], experiment: str, run_id: str, record: Record) -> list[str]:
        """Add what makes a run pleasant to read. Returns what could not be drawn."""
        from mlflow.exceptions import MlflowException

        problems = []
        for name, add in extras.items():
            try:
                add(self.store, experiment, run_id, record)
            except (MlflowException, OSError):  # the store's: it is tried again
                raise
            except Exception as error:  # whatever a figure trips over, the run itself is delivered
                problems.append(f"without its {name} ({type(error).__name__}: {describe(error)})")
        return problems


def _collided(error: Exception) -> bool:
    """Whether another process wrote the same tag or param between this one's question and its write."""
    return "UniqueViolation" in str(error) or "UNIQUE constraint" in str(error)
