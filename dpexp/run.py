"""One tracked run: engine, journal and follower together. Scripts and notebooks call ``run``.

    main process     import torch ... verify, observe, measure --> journal.jsonl   (never waits)
    follower         import mlflow ...            reads the journal --> MLflow

The follower starts first, so that both processes import at the same time. A run is prepared, with every
check of its config, before a folder is made or a row is written to the store.

A strategy with a launcher (``ddp``, ``fsdp``) runs in several processes: ``execute`` launches them, and each
calls it with the environment of its rank (commands/rank.py). The first rank records.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpexp.config.errors import ConfigError, Terminated, as_config_error
from dpexp.config.factories import live_names
from dpexp.config.printable import printable
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import LostContact, PeerError, error_row
from dpexp.distributed.job import Job, RankResult, end_with_launcher
from dpexp.distributed.signals import SignalHandler
from dpexp.distributed.world import RUN_ID, World
from dpexp.engine.progress import ProgressBar, importing_torch
from dpexp.record.files import JournalError, check_writable
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import Journal, NullJournal, new_run_id, now
from dpexp.record.record import Record
from dpexp.record.redact import redact
from dpexp.record.runs import begin
from dpexp.tracking.follow import Follower
from dpexp.tracking.ledger import Delivery
from dpexp.tracking.user_runs import user_run

if TYPE_CHECKING:
    from dpexp.engine.prepared import Prepared

RANK_PROGRAM = "from dpexp.commands.rank import run_rank; run_rank()"
"""What the process of a rank runs."""


class RunRecord(Record):
    """The Record that ``run`` returns: ``print`` shows its summary, and so does a notebook."""

    def __str__(self) -> str:
        from dpexp import report  # with rich: no rank and no command's help shows a Record

        return report.summary(self)

    def _repr_markdown_(self) -> str:
        from dpexp import report

        return report.note(self)


OnRecord = Callable[[Record, BaseException | None], None]
"""What is done with the complete Record of a run and the error that ended it early."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its Record, the result of its delivery, and the error that ended it early.

    ``record`` is None where a rank other than the first has failed.
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
    metrics: Any = None,
    validation: Any = None,
    quiet: bool = False,
    **options: Any,
) -> RunRecord:
    """Run the config, or the strategy of this name with these options, and return its Record.

    ``model``, ``data`` and ``loss`` are texts as on the command line, or objects: a module, of which a copy
    is trained; a data set, a DataLoader, a list of batches, or tensors ``(x, y)``; a function. The batch size
    of the Record is that of the loader or of the largest batch. ``quiet`` hides the progress bar.

    ``validation`` is data, too, which is evaluated in eval mode after each epoch, or after the last of
    ``steps``; ``metrics`` are ``{name: function}``, or a function that returns ``{name: number}``. They get
    outputs and targets of all rows, on the host: see ``measurement.evaluation``.

    Raises ConfigError for bad input, before anything is written. Raises the error that ended the run
    early after it is recorded.
    """
    flat = {"strategy": config} if isinstance(config, str) else config.to_dict()
    if isinstance(metrics, Mapping):
        from dpexp.measurement.evaluation import NamedMetrics  # torch: `execute` imports it beside mlflow

        metrics = NamedMetrics(metrics)
    texts, objects = texts_and_objects(
        {"model": model, "data": data, "loss": loss, "metrics": metrics, "validation": validation}
    )
    names = live_names(objects)
    complete = RunConfig.from_dict(flat | options | texts | names, where="")
    if objects and complete.options.launched_ranks is not None and World.of() is None:
        raise ConfigError(
            f"{complete.strategy} starts new processes, which do not have {', '.join(names.values())}: "
            "put the objects, or functions that make them, into a file and give their names as "
            "FILE.py:NAME, or start this program with torchrun"
        )
    outcome = execute(complete, objects, quiet=quiet)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.record is not None
    return RunRecord(**vars(outcome.record))


def texts_and_objects(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Of what a program gives, by option, the texts and the objects; a list of data is one of batches."""
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    objects = {name: value for name, value in given.items() if name not in texts and value is not None}
    if samples := {"data", "validation"} & objects.keys():
        from dpexp.data.user_data import OwnBatches  # torch, which the program has imported

        lists = {name: objects[name] for name in samples if isinstance(objects[name], list)}
        objects |= {name: OwnBatches(batches) for name, batches in lists.items()}
    return texts, objects


def execute(
    config: RunConfig,
    objects: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    is_last: bool = False,
    on_record: OnRecord = lambda record, error: None,
) -> Outcome:
    """Like ``run``, but return the error that ended the run early.

    ``objects`` are those that the config names, by option.
    ``is_last`` says that the process ends after this run: once a signal has ended it, others have no effect.
    ``on_record`` gets the Record and that error while the rest is delivered to MLflow.
    Raises ConfigError for whatever prevents the start of the run: then nothing is written.
    """
    world = World.of_next_run()
    if world is None and config.options.launched_ranks is not None:
        return _launch_ranks(config, quiet, on_record)
    if world is not None:
        end_with_launcher()
    is_recorder = world is None or world.rank == 0
    quiet, run_id = quiet or not is_recorder, os.environ.get(RUN_ID) or new_run_id()
    signals, run_before = SignalHandler(), user_run()
    with signals.installed(is_last=is_last), ExitStack() as globals_of_run:
        follower = Follower.start(home(), run_id) if config.track and is_recorder else None
        try:
            with as_config_error("the start of the run", JournalError, PeerError), importing_torch(quiet):
                signals.hold()  # torch turns what is raised in its import into another error, or aborts
                from dpexp.engine import (  # which import it
                    observations,
                    passes,
                    prediction,
                    prepare,
                    run_globals,
                )

                signals.release()
                if is_last or world is not None:
                    gc.freeze()  # collecting what torch has imported would take a second at the process's end
                globals_of_run.enter_context(run_globals.run_globals(config))
                prepared = prepare.prepare_ranks(config, objects, world)
                if world is None and prepared.may_mix_devices:
                    prediction.check_devices(prepared)
                facts = observations.run_facts(config, prepared) if is_recorder else {}
                signals.hold()
                journal = begin(home(), run_id, facts) if is_recorder else NullJournal()
        except BaseException as raised:
            if follower is not None:
                follower.kill()
            if signals.requested and isinstance(raised, ConfigError):  # an import that a signal cut short
                signals.terminate()
            raise
        progress, timeout_s = ProgressBar(hidden=quiet), config.track_timeout
        end = _End(prepared, journal, follower, timeout_s, signals, progress, on_record, run_before)
        with end, signals.raising():
            passes.execute(prepared, journal, progress, signals)
        return end.outcome


@dataclass
class _End(AbstractContextManager["_End"]):
    """The end of a run that has begun: after its last step, an error, a signal, or on a full disk.

    The error is recorded and not raised; ``outcome`` has it. No signal interrupts the end.
    """

    prepared: Prepared
    journal: Journal
    follower: Follower | None
    timeout_s: float
    signals: SignalHandler
    progress: ProgressBar
    on_record: OnRecord
    run_before: str

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> bool:
        """End the journal, leave the process group, and wait for the delivery."""
        self.signals.hold()  # for a signal that came between the last step and the end
        self.progress.close()
        group = self.prepared.group
        error, result = self._end_journal(raised)
        self.prepared.release()
        record = finish(self.journal.path) if group.is_first else None
        result.write()
        if error is None:
            record = group.broadcast(0, record)  # every rank has it, unless an error ended the run
            group.destroy()
        received = self.signals.received
        if group.is_first:
            _warn_of_user_run(self.run_before)
            assert record is not None
            self.on_record(record, error)  # while the rest is delivered
        self.outcome = Outcome(record, None, error)
        if self.follower is not None:
            with self.progress:
                self.progress.begin("delivering to MLflow")
                delivery = self.follower.wait(
                    self.timeout_s, lambda: self.signals.received > received, self.progress.print_line
                )
            replace(result, delivery=vars(delivery)).write()
            self.outcome = replace(self.outcome, delivery=delivery)
        return True

    def _end_journal(self, raised: BaseException | None) -> tuple[BaseException | None, RankResult]:
        """Write how the run ended; returns its error, also one of writing it, and its result."""
        error = self.prepared.group.root_cause(raised) if raised is not None else None
        row = error_row(error) if error is not None else None
        was_killed = isinstance(error, KeyboardInterrupt | Terminated | LostContact)
        status = "finished" if row is None else "killed" if was_killed else "failed"
        self.journal.set(status=status, ended=now(), error=row)
        try:
            self.journal.close()
        except JournalError as full:
            error, row = (error, row) if error is not None else (full, error_row(full))
        kind, message = (row["type"], row["message"]) if row is not None else ("", "")
        return error, RankResult(self.prepared.group.rank, status, kind, message)


def _warn_of_user_run(before: str) -> None:
    """Say that values of the user's code are elsewhere, if it has begun a run in MLflow since ``before``."""
    if (found := user_run()) == before:
        return
    text = (
        "warning: the model, data, loss or metrics log to MLflow by themselves (mlflow.log_metric or alike), "
        f"in {found}, and every process in a run of its own: what they log is not in the run of dpexp. "
        "Return it from --metrics instead"
    )
    print(printable(redact(text)), file=sys.stderr)


def _launch_ranks(config: RunConfig, quiet: bool, on_record: OnRecord) -> Outcome:
    """Start the ranks with torchrun's launcher; the Record is that of the first rank."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    with as_config_error("the start of the run", JournalError), importing_torch(quiet):
        from dpexp.distributed.launch import error_of, launch  # torchrun
        from dpexp.engine.prepare import prepare
        from dpexp.engine.run_globals import run_globals

        with run_globals(config):
            count = prepare(config).request.ranks_per_host()
        check_writable(home() / "runs")
    job, run_id = Job(config.to_dict(), quiet, sys.argv), new_run_id()
    results, fault = launch(job, count, RANK_PROGRAM, run_id)
    for result in results:
        if result.status == "refused":
            raise ConfigError(result.message)
    folder = home() / "runs" / run_id
    record = load_record(folder) if folder.exists() else None
    error = error_of(record, fault)
    if record is not None:
        on_record(record, error)
    delivery = next((Delivery(**result.delivery) for result in results if result.delivery), None)
    return Outcome(record, delivery, error)
