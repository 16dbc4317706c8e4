"""One tracked run: journal, uploader, loop. What scripts and notebooks call.

    main process     import torch ... verify, observe, measure --> journal.jsonl   (never waits)
    uploader         import mlflow ...            reads the journal --> MLflow

The uploader starts first, so that both imports go on side by side. Nothing is written, neither a
folder nor a row in the store, before the run has been prepared and nothing speaks against it.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.config import RunConfig, home
from dpexp.progress import Bar
from dpexp.record import Journal, JournalError, Record, finish, new_run_id, now
from dpexp.tracking import Delivery, Uploader, how_to_deliver

if TYPE_CHECKING:
    from dpexp.loop import Prepared, Progress

PARENT = "DPEXP_PARENT"
"""The environment variable that names the sweep, by its run id, that a run belongs to."""


class Terminated(BaseException):
    """SIGTERM came: the run ends as killed, with everything up to here recorded."""


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its Record, what became of its delivery, and why it ended early if it did."""

    record: Record
    delivery: Delivery | None
    error: BaseException | None


class RunRecord(Record):
    """The Record that ``run`` returns: a notebook shows its summary and timeline."""

    def _repr_html_(self) -> str:
        from dpexp import report

        return report.html(self)


def run(config: RunConfig, *, quiet: bool = False) -> RunRecord:
    """Run the config and return its Record; ``quiet`` hides the progress bar.

    Raises ConfigError for bad input, before anything is written, and re-raises what ended the run
    early, after it was recorded.
    """
    outcome = execute(config, quiet=quiet)
    if outcome.error is not None:
        raise outcome.error
    return RunRecord(**vars(outcome.record))


def execute(config: RunConfig, *, quiet: bool = False) -> Outcome:
    """Like ``run``, but a run that ended early is an Outcome as well.

    Raises ConfigError, and whatever else keeps a run from starting: then nothing was written.
    """
    uploader = Uploader.start(home()) if config.track else None
    try:
        prepared = _prepare(config)
        journal = _open(prepared)
    except BaseException:
        if uploader is not None:
            uploader.abandon()
        raise
    if uploader is not None:
        uploader.open(journal.path)
    error = _recorded(prepared, journal, uploader, quiet)
    record = finish(journal.path)
    delivery = _delivered(uploader, record, config.track_timeout) if uploader is not None else None
    return Outcome(record, delivery, error)


def _delivered(uploader: Uploader, record: Record, timeout_s: float) -> Delivery:
    """Wait for the last delivery, at most so long, or until Ctrl-C."""
    try:
        return uploader.finish(timeout_s)
    except KeyboardInterrupt:
        how = how_to_deliver(record.run_id)
        return Delivery(False, f"not waited for; the uploader goes on alone; to make sure: {how}")


def _prepare(config: RunConfig) -> Prepared:
    from dpexp import loop  # imports torch, while the uploader imports mlflow

    prepared = loop.prepare(config)
    if prepared.strategy.needs.prediction:
        from dpexp.plan import predict

        batch = next(prepared.batches(0))
        predict(prepared.model, prepared.strategy, prepared.selection.used, [batch.inputs])
    return prepared


def _open(prepared: Prepared) -> Journal:
    from dpexp import loop

    facts = loop.describe(prepared)
    journal = Journal(home() / "runs", new_run_id())
    journal.set(facts, parent=os.environ.get(PARENT, ""))
    journal.flush()
    return journal


def _recorded(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, quiet: bool
) -> BaseException | None:
    """Run the loop; however it ends, the journal says so. Returns what ended it early."""
    from dpexp import loop

    def more() -> None:
        if uploader is not None:
            uploader.read_on()

    error: BaseException | None = None
    status = "finished"
    with Bar() as bar:
        progress: Progress = loop.Silent() if quiet else bar
        try:
            with _terminable():
                loop.execute(prepared, journal, progress, more)
        except (KeyboardInterrupt, Terminated) as raised:
            error, status = raised, "killed"
        except (Exception, SystemExit) as raised:  # a model's code may call sys.exit
            error, status = raised, "failed"
    journal.set(status=status, ended=now(), error=_described(error))
    try:
        journal.close()
    except JournalError as raised:
        return error or raised
    return error


def _described(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises Terminated while inside; only the main thread can arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated(f"ended by {signal.Signals(number).name}")

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
