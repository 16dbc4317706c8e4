"""One tracked run: journal, uploader, loop. What scripts and notebooks call.

    main process     import torch ... verify, observe, measure --> journal.jsonl   (never waits)
    uploader         import mlflow ...            reads the journal --> MLflow

The uploader starts first, so that both imports go on side by side. Nothing is written, neither a
folder nor a row in the store, before the run has been prepared and nothing speaks against it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.config import ConfigError, RunConfig, home
from dpexp.distributed import SigtermHandler, Terminated, World
from dpexp.distributed.faults import LostContact
from dpexp.distributed.launch import end_with_launcher, launch
from dpexp.distributed.rank_result import RankResult, first_rank_result, write_result
from dpexp.engine.progress import ProgressBar
from dpexp.record import Journal, JournalError, Record, finish, load, new_run_id, now
from dpexp.tracking import Delivery, Uploader, how_to_deliver

if TYPE_CHECKING:
    from dpexp.engine.prepare import Prepared

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
        end_with_launcher()
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
        uploader.open(journal.path, again=prepared.resumes)
    stop = SigtermHandler()
    with stop.installed():
        error = _recorded(prepared, journal, uploader, quiet or not records, stop)
        with stop.deferred():  # what is left is to say how it ended
            prepared.release()
            return _ended(prepared, journal, uploader, error)


def _ended(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, error: BaseException | None
) -> Outcome:
    """Everything is on the disk before the ranks part, and before the last delivery is waited for."""
    group, config = prepared.group, prepared.config
    record = finish(journal.path) if group.is_first else None
    told = _described(error) or {"type": "", "message": ""}
    word = RankResult(group.rank, "failed" if error else "finished", told["type"], told["message"])
    if record is not None:
        word = dataclasses.replace(word, status=record.status, folder=str(journal.folder))
    write_result(word)
    if error is None:
        if prepared.checkpoints is not None:
            prepared.checkpoints.remove()
        group.destroy()
    delivery = (
        _delivered(uploader, journal.folder.name, config.track_timeout) if uploader is not None else None
    )
    if delivery is not None:
        write_result(dataclasses.replace(word, delivery=vars(delivery)))
    return Outcome(record, delivery, error)


def _delivered(uploader: Uploader, run_id: str, timeout_s: float) -> Delivery:
    """Wait for the last delivery, at most so long, or until Ctrl-C."""
    try:
        return uploader.finish(timeout_s)
    except KeyboardInterrupt:
        how = how_to_deliver(run_id)
        return Delivery(False, f"not waited for; the uploader goes on alone; to make sure: {how}")


def _prepare(config: RunConfig, world: World | None) -> Prepared:
    from dpexp.engine.prepare import prepare_ranks

    prepared = prepare_ranks(config, world)
    if prepared.strategy.needs.prediction:
        from dpexp.engine.predict import predict

        batch = next(prepared.batches(0))
        predict(prepared, [batch.inputs])
    return prepared


def _open(prepared: Prepared) -> Journal:
    from dpexp.engine.observations import run_facts

    if not prepared.group.is_first:
        return Unwritten()
    facts, runs = run_facts(prepared), home() / "runs"
    if prepared.resumes and (runs / prepared.run_id).exists():
        journal = Journal.reopen(runs / prepared.run_id)
        going_on = ("status", "execution", "config", "config_digest")
        journal.set({key: facts[key] for key in going_on}, ended=None, error=None)
    else:
        journal = Journal(runs, prepared.run_id or new_run_id())
        journal.set(facts, parent=os.environ.get(PARENT, ""))
    journal.flush()
    return journal


def _recorded(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, quiet: bool, stop: SigtermHandler
) -> BaseException | None:
    """Run the loop; however it ends, the journal says so. Returns what ended it early."""
    from dpexp.engine import loop

    def more() -> None:
        if uploader is not None:
            uploader.read_on()

    error: BaseException | None = None
    status = "finished"
    with ProgressBar(hidden=quiet) as progress:
        try:
            loop.execute(prepared, journal, progress, more, stop)
        except (KeyboardInterrupt, Terminated) as raised:
            with stop.deferred():
                error = prepared.group.peer_error_or(raised)
                status = "killed" if error is raised else "failed"
        except (Exception, SystemExit) as raised:  # a model's code may call sys.exit
            with stop.deferred():
                error, status = prepared.group.root_cause(raised), "failed"
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


RANK = "from dpexp.run import run_rank; run_rank()"
"""What a launched rank runs; its argument is the job as JSON."""


class RanksError(RuntimeError):
    """The ranks' run ended early: the first rank's Record says why."""


def _launch(config: RunConfig, quiet: bool) -> Outcome:
    """The run in ranks of its own, started by torchrun's launcher; its Record is the first rank's."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    from dpexp.distributed.device_assignment import processes
    from dpexp.engine.prepare import prepare

    prepare(config)
    count = processes(config)
    told, fault = launch(config, count, RANK, quiet=quiet)
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


def run_rank() -> None:
    """Run this rank's part of the job in ``sys.argv``, and exit.

    The exit code is 0 once the result is written, whatever it is: then the launcher has nothing to restart.
    A rank that lost its peers exits with 1, so that all of them are restarted.
    """
    from dpexp.distributed.launch import Job

    job = Job(**json.loads(sys.argv[1]))
    sys.argv = job.argv
    world = World.of()
    assert world is not None
    if _is_over():
        sys.exit(0)  # what ended then was only its teardown
    try:
        outcome = execute(RunConfig.from_dict(job.config, where="job"), quiet=job.quiet)
    except ConfigError as error:
        write_result(RankResult(world.rank, "refused", type(error).__name__, str(error)))
        sys.exit(0)
    sys.exit(int(isinstance(outcome.error, LostContact) and not _is_over()))


def _is_over() -> bool:
    """Whether the first rank has reported how the run ended; after lost contact the run is to resume."""
    result = first_rank_result()
    return result is not None and result.kind != LostContact.kind


def _error_elsewhere(told: list[RankResult], fault: BaseException | None) -> BaseException | None:
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
