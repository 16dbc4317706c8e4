"""Recording: the journal of a watched loop, and its delivery to MLflow.

    dpexp.watch      begin             the follower starts, the journal has what is known of the program
    its first step   laid_out, shapes  every rank takes part, the first one writes
    each step        step, verified
    run.log          log
    the end          close             of a ``with`` block, or of the process

A process that is killed writes no end: the follower finds a journal without a writer, and says so.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from dpexp.config.errors import ConfigError, Terminated
from dpexp.config.printable import printable
from dpexp.config.process import home
from dpexp.config.run_config import config_digest
from dpexp.config.words import shown
from dpexp.distributed.faults import error_row
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.signals import SIGNALS
from dpexp.engine.observations import merged_shapes
from dpexp.record.files import JournalError
from dpexp.record.fold import finish
from dpexp.record.journal import WATCH_STRATEGY, Journal, NullJournal, new_run_id, now
from dpexp.record.record import Row
from dpexp.record.redact import redact
from dpexp.record.runs import begin
from dpexp.tracking.follow import Follower
from dpexp.watch.program import NOT_VERIFIED, config_of, facts_of, laid_out, on_device, plain, rank

BURST = 10
"""After a pause the journal is flushed so many times in a row: of two metrics that are logged at the end of
an epoch the second does not wait for the next one."""


class Recording:
    """What is written of one watched loop. ``Recording()`` writes nothing.

    Nor does that of a rank other than the first, and of a forked process. A disk that is full is reported
    once on stderr, and the loop goes on.
    """

    def __init__(self, journal: Journal | None = None, follower: Follower | None = None) -> None:
        self._journal, self._follower = journal or NullJournal(), follower
        self._writer = os.getpid() if journal is not None else 0
        self._config, self._dtype = Row(), ""
        self._ranks: list[str] = []
        self._failure: Row | None = None
        self._is_closed = False

    @classmethod
    def begin(cls, model: nn.Module, name: str | None, options: Mapping[str, Any]) -> Recording:
        """Begin the run on the first rank; every rank must call this.

        ``options`` are those of the watch. ``DPEXP_EXPERIMENT`` and ``DPEXP_TRACK_TIMEOUT`` are read. Raises
        ConfigError for a name that a store does not hold, and for a folder of runs that cannot be written.
        """
        config, run_id = config_of(model, name, options), new_run_id()
        if rank():
            return cls()
        follower = Follower.start(home(), run_id)
        try:
            recording = cls(begin(home(), run_id, facts_of(config)), follower)
        except BaseException as error:
            follower.kill()
            if isinstance(error, JournalError):
                raise ConfigError(str(error)) from error
            raise
        recording._config = config
        atexit.register(recording._end_with_process)
        return recording

    @property
    def run_id(self) -> str:
        """The id of the run; empty where nothing is written."""
        return self._journal.folder.name

    def laid_out(
        self,
        model: nn.Module,
        group: ProcessGroup,
        wrapper: str = WATCH_STRATEGY,
        replicas: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Record where the parameters of the model are; every rank must call this.

        ``wrapper`` is the strategy of a wrapper around it, where that is plain, and ``replicas`` are the
        devices of its copies in this process. ``options`` are what the config is to have besides, such as the
        optimizer.
        """
        layout = laid_out(model, group, wrapper, replicas)
        options |= {"layout": wrapper} if wrapper != WATCH_STRATEGY else {}
        self._config = self._config | plain(options)
        self._ranks = [row["device"] for row in layout["devices"].get("ranks", ())]
        self._dtype = next((row["dtype"] for row in layout["device_map"] if row["kind"] == "parameter"), "")
        self._set(**layout, config=self._config, config_digest=config_digest(self._config))

    def shapes(self, rows: list[Row], group: ProcessGroup) -> None:
        """Record the calls of this rank, after ``laid_out``; every rank must call this.

        The rows are those of ``shapes`` of a Record; with ranks, each rank is a replica.
        """
        if self._ranks:
            own = on_device(rows, self._ranks[group.rank])
            rows = merged_shapes(group.all_gather(own), self._ranks)
        self._set(shapes=rows)

    def step(self, time_ms: float, loss: float | None, samples: int) -> None:
        """Record one step of the optimizer: its time, its loss where that was seen, the rows of all ranks."""
        if self._is_writer and self._failure is None:
            values = {"time_ms": round(time_ms, 6), "loss": loss, "samples": samples}
            self._journal.extend({f"steps.{name}": [value] for name, value in values.items()})
            self._flush_if_due()

    def verified(self, verification: Row) -> None:
        """Record the verdict so far: those keys of ``verification`` of a Record that are known."""
        self._set(verification=NOT_VERIFIED | {"dtype": self._dtype, "note": ""} | verification)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Record numbers, or tensors with one number, each as the next value of its metric.

        Raises ValueError for anything else, and RuntimeError after the end, on every rank.
        """
        numbers = {
            name: value if type(value) is float else _number(name, value) for name, value in metrics.items()
        }
        if self._is_closed:
            raise RuntimeError("the run has ended: log metrics inside its «with» block, or before close()")
        if self._is_writer and self._failure is None:
            self._journal.extend({f"metrics.{name}": [value] for name, value in numbers.items()})
            self._flush_if_due()

    def close(self, error: BaseException | None = None) -> None:
        """End the run, by this error if there is one, and wait until it is delivered or the time is over."""
        is_writer, self._is_closed = self._is_writer, True
        if not is_writer:
            return
        self._writer = 0
        atexit.unregister(self._end_with_process)
        status = _status(error) if error is not None else "failed" if self._failure else "finished"
        row = error_row(error) if error is not None and status != "finished" else self._failure
        self._journal.set(status=status, ended=now(), error=row)
        try:
            self._journal.close()
        except JournalError as raised:
            _say(f"the end of run {self.run_id} is not recorded: {raised}")
        for damage in finish(self._journal.path).damage:
            _say(f"run {self.run_id}: {damage}")
        assert self._follower is not None
        delivery, self._follower = self._follower.wait(self._config["track_timeout"]), None
        if not delivery.complete:
            _say(f"run {self.run_id}: {delivery.message}")

    def _end_with_process(self) -> None:
        """Called at the end of the process: ``last_value`` is the error that ends it, but not in a shell."""
        self.close(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))

    @property
    def _is_writer(self) -> bool:
        return self._writer == os.getpid()

    def _set(self, **values: Any) -> None:
        if self._is_writer:
            self._journal.set(values)
            self._flush()

    def _flush_if_due(self) -> None:
        if self._journal.is_due:
            self._flush(burst=BURST)

    def _flush(self, *, burst: int | None = None) -> None:
        """Write what is buffered; after an error nothing is written but the end."""
        if self._failure is None:
            try:
                self._journal.flush(burst=burst)
            except JournalError as error:
                self._failure = error_row(error)  # not the error, whose frames hold the model
                _say(f"run {self.run_id} is recorded no further, the loop goes on: {error}")


def _number(name: str, value: Any) -> float:
    """Raises ValueError for what is not one number."""
    try:
        if not isinstance(value, str):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor with several raises RuntimeError
        pass
    shape = getattr(value, "shape", None)
    found = shown(value) if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"
    raise ValueError(f"metric '{name}' is {found}: log one number, or a tensor with one")


def _status(error: BaseException) -> str:
    """How the run ends: a program may answer a signal with SystemExit and the code that a shell gives it."""
    code = error.code if isinstance(error, SystemExit) else 1
    if isinstance(error, KeyboardInterrupt | Terminated) or code in {128 + each for each in SIGNALS}:
        return "killed"
    return "failed" if code else "finished"


def _say(text: str) -> None:
    print(printable(redact(f"warning: {text}")), file=sys.stderr)
