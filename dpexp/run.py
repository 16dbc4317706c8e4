"""One tracked run: engine, journal and uploader together. Scripts and notebooks call ``run``.

    main process     import torch ... verify, observe, measure --> journal.jsonl   (never waits)
    uploader         import mlflow ...            reads the journal --> MLflow

The uploader starts first, so that both processes import at the same time. A run is prepared, with every
check of its config, before a folder is made or a row is written to the store.

A strategy with a launcher (``ddp``, ``fsdp``) runs in several processes: ``execute`` launches them, and each
calls it with the environment of its rank (rank.py). The first rank records.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dpexp import live
from dpexp.config.errors import ConfigError, describe, startup_errors
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import LostContact, PeerError, error_row
from dpexp.distributed.launch import end_with_launcher, launch
from dpexp.distributed.rank_result import RankResult, write_result
from dpexp.distributed.rendezvous import host_range
from dpexp.distributed.signals import SignalHandler, Terminated
from dpexp.distributed.world import World
from dpexp.engine.progress import ProgressBar, importing_torch
from dpexp.record.journal.durable import check_writable
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import Journal, NullJournal
from dpexp.record.record import JournalError, Record, Row, new_run_id, now
from dpexp.record.runs.origin import sign
from dpexp.tracking.process.uploader import Delivery, Uploader

if TYPE_CHECKING:
    from dpexp.engine.prepare import Prepared

PARENT = "DPEXP_PARENT"
"""The environment variable with the run id of the sweep that a run belongs to."""


class RunRecord(Record):
    """The Record that ``run`` returns: a notebook shows its summary and timeline."""

    def _repr_html_(self) -> str:
        from dpexp import report

        return report.html(self)


OnRecord = Callable[[Record, BaseException | None], None]
"""What is done with the complete Record of a run and the error that ended it early."""


def _ignore(record: Record, error: BaseException | None) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its Record, the result of its delivery, and the error that ended it early.

    ``record`` is None in a rank that does not record.
    """

    record: Record | None
    delivery: Delivery | None
    error: BaseException | None


def run(
    config: RunConfig | str,
    *,
    model: Any = None,
    data: Any = None,
    loss: Any = None,
    quiet: bool = False,
    **options: Any,
) -> RunRecord:
    """Run the config, or the strategy of this name with these options, and return its Record.

    ``model``, ``data`` and ``loss`` are texts as on the command line, or objects: a module, of which a copy
    is trained; a data set, a DataLoader, a list of batches, or tensors ``(x, y)``; a function. The batch size
    is by default that of the loader or of the first batch. ``quiet`` hides the progress bar.

    Raises ConfigError for bad input, before anything is written. Raises the error that ended the run
    early after it is recorded.
    """
    flat = {"strategy": config} if isinstance(config, str) else config.to_dict()
    given = {"model": model, "data": data, "loss": loss}
    objects = {
        name: value for name, value in given.items() if value is not None and not isinstance(value, str)
    }
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    if "data" in objects:
        objects["data"], rows = _user_data(data)
        options = {"batch_size": rows, **options} if rows and isinstance(config, str) else options
    with live.named(objects) as names:
        complete = RunConfig.from_dict(flat | options | texts | names, where="")
        if objects and complete.options.launch_options and World.of() is None:
            raise _not_in_ranks(complete, names)
        outcome = execute(complete, quiet=quiet)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.record is not None, "a rank other than the first has no Record"
    return RunRecord(**vars(outcome.record))


def _user_data(data: Any) -> tuple[Any, int | None]:
    """The data, a list of batches as a data set, and the rows of a batch where it has batches."""
    from dpexp.data.sources import user_samples

    rows = user_samples.rows_of_batch(data)
    return user_samples.of_batches(data) if isinstance(data, list) else data, rows


def _not_in_ranks(config: RunConfig, names: Mapping[str, str]) -> ConfigError:
    return ConfigError(
        f"{config.strategy} starts new processes, which do not have {', '.join(names.values())}: put the "
        "objects, or functions that make them, into a file and give their names as FILE.py:NAME, or start "
        "this program with torchrun"
    )


def execute(
    config: RunConfig, *, quiet: bool = False, is_last: bool = False, on_record: OnRecord = _ignore
) -> Outcome:
    """Like ``run``, but return the error that ended the run early.

    ``is_last`` says that the process ends after this run: once a signal has ended it, others have no effect.
    ``on_record`` gets the Record and that error while the rest is delivered to MLflow.
    Raises ConfigError for whatever prevents the start of the run: then nothing is written.
    """
    world = World.of()
    if world is None and config.options.launch_options is not None:
        outcome = _launch_ranks(config, quiet)
        if outcome.record is not None:
            on_record(outcome.record, outcome.error)
        return outcome
    if world is not None:
        end_with_launcher()
    is_recorder = world is None or world.rank == 0
    signals = SignalHandler()
    with signals.installed(is_last=is_last):
        uploader = Uploader.start(home()) if config.track and is_recorder else None
        try:
            with startup_errors(JournalError, PeerError), importing_torch(quiet or not is_recorder):
                prepared = _prepare(config, world, is_last or world is not None)
                facts = _facts(prepared)
                signals.hold()
                journal = _open_journal(prepared, facts)
        except BaseException:
            if uploader is not None:
                uploader.abandon()
            raise
        if uploader is not None:
            uploader.open(journal.path, again=prepared.resumes)
        error = _run_loop(prepared, journal, uploader, quiet or not is_recorder, signals)
        prepared.release()
        return _finish(prepared, journal, uploader, error, signals, on_record, quiet)


def _prepare(config: RunConfig, world: World | None, is_last: bool) -> Prepared:
    from dpexp.engine.prepare import prepare_ranks

    if is_last:
        _freeze_imports()
    prepared = prepare_ranks(config, world)
    if prepared.strategy.needs.prediction:
        from dpexp.engine.dry_run import predict

        predict(prepared, [next(prepared.batches(0))])
    return prepared


def _freeze_imports() -> None:
    """Leave what torch has imported out of garbage collection, which takes a second at the process's end.

    Nothing of the user's exists yet, and what the run makes is collected as always.
    """
    gc.freeze()


def _facts(prepared: Prepared) -> Row:
    """The description of the run, for the rank that records."""
    from dpexp.engine.observations import run_facts

    return run_facts(prepared) if prepared.group.is_first else {}


def _open_journal(prepared: Prepared, facts: Row) -> Journal:
    """The journal with the description of the run: a new one, or that of the run that resumes."""
    if not prepared.group.is_first:
        return NullJournal()
    runs = home() / "runs"
    if prepared.resumes and (runs / prepared.run_id).exists():
        journal = Journal.reopen(runs / prepared.run_id)
        changed = {key: facts[key] for key in ("status", "execution", "config", "config_digest", "files")}
        journal.set(changed, ended=None, error=None)
    else:
        journal = Journal(runs, prepared.run_id or new_run_id())
        journal.set(facts, parent=os.environ.get(PARENT, ""))
    journal.set(origin=sign(home(), journal.folder.name, facts["config"]))
    journal.flush()
    return journal


def _run_loop(
    prepared: Prepared, journal: Journal, uploader: Uploader | None, quiet: bool, signals: SignalHandler
) -> BaseException | None:
    """Run the loop and write its end to the journal. Returns the error that ended it early."""
    on_flush = uploader.read_on if uploader is not None else lambda: None
    with ProgressBar(hidden=quiet) as progress:
        error = _loop_error(prepared, journal, progress, on_flush, signals)
    status = "finished" if error is None else "failed"
    if isinstance(error, KeyboardInterrupt | Terminated):
        original, error = error, prepared.group.peer_error_or(error)
        status = "killed" if error is original else "failed"
    elif error is not None:
        error = prepared.group.root_cause(error, lambda: signals.requested)
    journal.set(status=status, ended=now(), error=error_row(error) if error else None)
    try:
        journal.close()
    except JournalError as raised:
        return error or raised
    return error


def _loop_error(
    prepared: Prepared,
    journal: Journal,
    progress: ProgressBar,
    on_flush: Callable[[], None],
    signals: SignalHandler,
) -> BaseException | None:
    """Run the loop, until no signal can raise. Returns what ended it early, which may be anything."""
    from dpexp.engine import loop

    process = os.getpid()
    try:
        try:
            signals.release()
            loop.execute(prepared, journal, progress, on_flush, signals)
            signals.hold()
        except BaseException as raised:
            signals.hold()
            if os.getpid() != process:
                _leave_forked_child(raised)
            return raised
    except BaseException as raised:  # a signal before ``hold``
        signals.hold()
        return raised
    return None


def _leave_forked_child(error: BaseException) -> NoReturn:
    """End a process that user code forked and that came back here: the run belongs to its parent."""
    if isinstance(error, SystemExit):
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    print(f"error: in a process that was forked in the run: {describe(error)}", file=sys.stderr, flush=True)
    os._exit(1)


def _finish(
    prepared: Prepared,
    journal: Journal,
    uploader: Uploader | None,
    error: BaseException | None,
    signals: SignalHandler,
    on_record: OnRecord,
    quiet: bool,
) -> Outcome:
    """Write the Record and the result of this rank, leave the process group, and wait for the delivery."""
    group = prepared.group
    record = finish(journal.path) if group.is_first else None
    result = RankResult(group.rank, "finished")
    if error is not None:
        row = error_row(error)
        result = replace(result, status="failed", kind=row["type"], message=row["message"])
    if record is not None:
        result = replace(result, status=record.status, folder=str(journal.folder))
    write_result(result)
    if error is None:
        if prepared.snapshots is not None:
            prepared.snapshots.remove()
        group.destroy()
    before = signals.received
    if uploader is not None:
        uploader.complete()
    if record is not None:
        on_record(record, error)
    if uploader is None:
        return Outcome(record, None, error)
    with ProgressBar(hidden=quiet) as progress:
        progress.begin("delivering to MLflow")
        delivery = uploader.finish(prepared.config.track_timeout, lambda: signals.received > before)
    write_result(replace(result, delivery=vars(delivery)))
    return Outcome(record, delivery, error)


# --- several ranks -------------------------------------------------------------------------------


RANK_PROGRAM = "from dpexp.commands.rank import run_rank; run_rank()"
"""What the process of a rank runs."""


class RanksError(RuntimeError):
    """The run failed in its ranks; the Record of the first rank has the reason."""


def _launch_ranks(config: RunConfig, quiet: bool) -> Outcome:
    """Start the ranks with torchrun's launcher; the Record is that of the first rank."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    options = config.options.launch_options
    assert options is not None
    with startup_errors(JournalError), importing_torch(quiet):
        from dpexp.distributed.device_assignment import processes
        from dpexp.engine.prepare import prepare

        prepare(config)
        if host_range(options)[1] == 1:  # of several hosts only that of the first rank records
            check_writable(home() / "runs")
    results, fault = launch(config, processes(config), RANK_PROGRAM, quiet=quiet)
    for result in results:
        if result.status == "refused":
            raise ConfigError(result.message)
    first = next((result for result in results if result.rank == 0), None)
    if first is None:
        return Outcome(None, None, _error_without_first_rank(results, fault))
    record = load(Path(first.folder))
    delivery = Delivery(**first.delivery) if first.delivery else None
    error = _recorded_error(record)
    explains = isinstance(error, LostContact) and getattr(fault, "is_cause", False)
    return Outcome(record, delivery, fault if explains else error)


def _error_without_first_rank(results: list[RankResult], fault: BaseException | None) -> BaseException | None:
    """The error of a host whose ranks do not include the first, or have no run yet; None if they finished.

    A signal to this process is why its ranks ended, whatever they say.
    """
    if isinstance(fault, KeyboardInterrupt | Terminated):
        return fault
    for result in results:
        if result.status != "finished":
            return RanksError(result.message)
    return fault if results or fault else RanksError("the ranks ended without a result")


def _recorded_error(record: Record) -> BaseException | None:
    """The error that ended a recorded run early."""
    if record.status == "finished":
        return None
    error: Mapping[str, str] = record.error or {}
    message = error.get("message", f"the run is {record.status}")
    for kind in (Terminated, KeyboardInterrupt, LostContact):
        if kind.__name__ == error.get("type"):
            return kind(message)
    return RanksError(message)
