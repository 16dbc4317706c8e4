"""One tracked run: journal, uploader, loop. What scripts and notebooks call.

    main process     import torch ... verify, observe, measure --> journal.jsonl   (never waits)
    uploader         import mlflow ...            reads the journal --> MLflow

The uploader starts first, so that both imports go on side by side. Nothing is written, neither a
folder nor a row in the store, before the run has been prepared and nothing speaks against it.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.config import ConfigError, RunConfig, home
from dpexp.distributed import Stop, Terminated, World
from dpexp.distributed.faults import LostContact
from dpexp.distributed.launch import die_with_launcher, launch
from dpexp.progress import Bar
from dpexp.record import Journal, JournalError, Record, finish, load, new_run_id, now
from dpexp.tracking import Delivery, Uploader, how_to_deliver

if TYPE_CHECKING:
    from dpexp.distributed.outcome import Told
    from dpexp.loop import Prepared, Progress

PARENT = "DPEXP_PARENT"
"""The environment variable that names the sweep, by its run id, that a run belongs to."""


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its Record, what became of its delivery, and why it ended early if it did.

    ``record`` is None in a rank that does not record.
    """

    record: Record | None
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
    assert outcome.record is not None, "a rank other than the first has no Record"
    return RunRecord(**vars(outcome.record))


def execute(config: RunConfig, *, quiet: bool = False) -> Outcome:
    """Like ``run``, but a run that ended early is an Outcome as well.

    Raises ConfigError, and whatever else keeps a run from starting: then nothing was written.
    """
    world = World.of()
    if world is None and config.options.launcher:
        return _launch(config, quiet)
    if world is not None:
        die_with_launcher()
    records = world is None or world.rank == 0
    uploader = Uploader.start(home()) if config.track and records else None
    try:
        prepared = _prepare(config, world)
        journal = _open(prepared)
    except BaseException:
        if uploader is not None:
            uploader.abandon()
        raise
    if uploader is not None:
        uploader.open(journal.path, again=prepared.goes_on)
    stop = Stop()
    with stop.listening():
        error = _recorded(prepared, journal, uploader, quiet or not records, stop)
        with stop.held():  # what is left is to say how it ended
            prepared.release()
            return _ended(prepared, journal, uploader, error)


def _ended(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, error: BaseException | None
) -> Outcome:
    """Everything is on the disk before the ranks part, and before the last delivery is waited for."""
    from dpexp.distributed import outcome

    ranks, config = prepared.ranks, prepared.config
    record = finish(journal.path) if ranks.is_first else None
    told = _described(error) or {"type": "", "message": ""}
    word = outcome.Told(ranks.rank, "failed" if error else "finished", told["type"], told["message"])
    if record is not None:
        word = dataclasses.replace(word, status=record.status, folder=str(journal.folder))
    outcome.tell(word)
    if error is None:
        if prepared.snapshots is not None:
            prepared.snapshots.forget()
        ranks.leave()
    delivery = (
        _delivered(uploader, journal.folder.name, config.track_timeout) if uploader is not None else None
    )
    if delivery is not None:
        outcome.tell(dataclasses.replace(word, delivery=vars(delivery)))
    return Outcome(record, delivery, error)


def _delivered(uploader: Uploader, run_id: str, timeout_s: float) -> Delivery:
    """Wait for the last delivery, at most so long, or until Ctrl-C."""
    try:
        return uploader.finish(timeout_s)
    except KeyboardInterrupt:
        how = how_to_deliver(run_id)
        return Delivery(False, f"not waited for; the uploader goes on alone; to make sure: {how}")


def _prepare(config: RunConfig, world: World | None) -> Prepared:
    from dpexp import loop  # imports torch, while the uploader imports mlflow

    prepared = loop.prepare_together(config, world)
    if prepared.strategy.needs.prediction:
        from dpexp.plan import predict

        batch = next(prepared.batches(0))
        predict(prepared.model, prepared.strategy, prepared.selection.used, [batch.inputs])
    return prepared


def _open(prepared: Prepared) -> Journal:
    from dpexp import loop

    if not prepared.ranks.is_first:
        return Unwritten()
    facts, runs = loop.describe(prepared), home() / "runs"
    if prepared.goes_on and (runs / prepared.run_id).exists():
        journal = Journal.reopen(runs / prepared.run_id)
        going_on = ("status", "execution", "config", "config_digest")
        journal.set({key: facts[key] for key in going_on}, ended=None, error=None)
    else:
        journal = Journal(runs, prepared.run_id or new_run_id())
        journal.set(facts, parent=os.environ.get(PARENT, ""))
    journal.flush()
    return journal


def _recorded(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, quiet: bool, stop: Stop
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
            loop.execute(prepared, journal, progress, more, stop)
        except (KeyboardInterrupt, Terminated) as raised:
            with stop.held():
                error = prepared.ranks.blamed(raised)
                status = "killed" if error is raised else "failed"
        except (Exception, SystemExit) as raised:  # a model's code may call sys.exit
            with stop.held():
                error, status = prepared.ranks.explained(raised), "failed"
    journal.set(status=status, ended=now(), error=_described(error))
    try:
        journal.close()
    except JournalError as raised:
        return error or raised
    return error


class Unwritten(Journal):
    """The journal of a rank that does not record: the first rank's has it all."""

    def __init__(self) -> None:
        self.folder = self.path = Path()

    def set(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Nothing is kept."""

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Nothing is kept."""

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Nothing was kept."""

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing was open."""


# --- several ranks -------------------------------------------------------------------------------


class RanksError(RuntimeError):
    """The ranks' run ended early: the first rank's Record says why."""


def _launch(config: RunConfig, quiet: bool) -> Outcome:
    """The run in ranks of its own, started by torchrun's launcher; its Record is the first rank's."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    from dpexp import loop  # refuse here what can be refused, before anything is started
    from dpexp.distributed.select import processes

    loop.prepare(config)
    count = processes(config)
    told, fault = launch(config, count, quiet=quiet)
    refused = next((each for each in told if each.status == "refused"), None)
    if refused is not None:
        raise ConfigError(refused.message)
    first = next((each for each in told if each.rank == 0), None)
    if first is None:
        return Outcome(None, None, _error_elsewhere(told, fault))
    record = load(Path(first.folder))
    delivery = Delivery(**first.delivery) if first.delivery else None
    error = _error_of(record)
    explains = isinstance(error, LostContact) and getattr(fault, "is_cause", False)
    return Outcome(record, delivery, fault if explains else error)


def _error_elsewhere(told: list[Told], fault: BaseException | None) -> BaseException | None:
    """What ended the ranks of a host that has not the first one; None where they finished."""
    failed = next((each for each in told if each.status != "finished"), None)
    if failed is not None:
        return RanksError(failed.message)
    return fault if told else fault or RanksError("the ranks ended without a word")


def _error_of(record: Record) -> BaseException | None:
    """What ended a run of other processes early, by its Record."""
    if record.status == "finished":
        return None
    told = record.error or {}
    kinds: dict[str, type[BaseException]] = {
        each.__name__: each for each in (Terminated, KeyboardInterrupt, LostContact)
    }
    return kinds.get(told.get("type", ""), RanksError)(told.get("message", f"the run is {record.status}"))


def _described(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "type": getattr(error, "kind", type(error).__name__),
        "message": str(error),
        "traceback": getattr(error, "traceback", "") or "".join(traceback.format_exception(error)),
    }
