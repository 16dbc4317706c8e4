"""Passes: a prepared run from its verification to its last pass. Facts go to the journal as found."""

import math
from dataclasses import dataclass
from itertools import islice

from dpexp import tensors
from dpexp.distributed.signals import SignalHandler
from dpexp.engine.observations import Observations
from dpexp.engine.prepared import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.run_globals import seeded_ranks
from dpexp.engine.step_log import StepLog
from dpexp.engine.verify import Verification
from dpexp.measurement.collectives import counted_collectives
from dpexp.measurement.step_profile import profiled_step
from dpexp.measurement.steps import STEPS, WARM_UP, profile_steps, timed_steps
from dpexp.record.journal import Journal
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer
from dpexp.verification.gathered_outputs import scalars_of_replicas


class RunError(RuntimeError):
    """The run cannot continue: what happened, in which step, and what to try."""


def execute(
    prepared: Prepared, journal: Journal, progress: ProgressBar, signals: SignalHandler | None = None
) -> None:
    """Verify, observe and measure the run.

    Raises VerificationError, RunError, and what the model raises.
    """
    with scalars_of_replicas():
        verification = Verification(prepared, journal, progress)
        verification.before()
        timer = Timer(prepared.selection.used)
        with seeded_ranks(prepared.group, prepared.seed):
            placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
        observations = Observations(prepared, placed)
        journal.set(devices=observations.device_facts(), device_map=observations.device_map())
        progress.begin("observe")
        journal.set(shapes=observations.shapes())
        journal.flush()
        trainer = prepared.trainer(placed)
        signals = signals or SignalHandler()
        measurement = Measurement(prepared, trainer, journal, progress, observations, signals, verification)
        measurement.warm_up()
        measurement.time_steps()
        measurement.record_digests()
        measurement.compare_last()
        measurement.time_phases()
        measurement.profile()
        measurement.count_collectives()
        measurement.profile_operators()


@dataclass
class Measurement:
    """The measured part of a run. ``verification`` compares some steps outside of the measured ones."""

    prepared: Prepared
    trainer: Trainer
    journal: Journal
    progress: ProgressBar
    observations: Observations
    signals: SignalHandler
    verification: Verification

    def __post_init__(self) -> None:
        self._schedule, self._group = self.prepared.schedule, self.prepared.group
        self._log = StepLog(self.journal, self._group, self.signals, self.progress)

    def warm_up(self) -> None:
        """Take steps that are not measured, until allocators, caches and autotuning are warm."""
        self.progress.begin("warm up")
        batches = islice(self.prepared.endless_batches(), self._schedule.warmup)
        self.verification.first(self.trainer, batches)
        for batch in batches:
            self.trainer.step(self.prepared.part(batch))

    def compare_last(self) -> None:
        """Compare further steps, from the trained state; later ones accumulate as without them."""
        self.verification.last(self._log.written)

    # --- timed steps ---

    def time_steps(self) -> None:
        """Measure ``--epochs`` of the data or ``--steps``, each step between idle devices."""
        total, per_epoch = self._schedule.steps, self.prepared.batches_per_epoch
        if self.trainer.optimizers is not None:
            self.trainer.optimizers.restart()
        self.progress.begin("steps", total)
        self.journal.flush(burst=0)  # the flush interval begins with the first step
        try:
            for epoch in range(math.ceil(total / per_epoch)):
                self._time_epoch(epoch, total - epoch * per_epoch)
                if self._schedule.by_epoch:
                    self._evaluate()
            if not self._schedule.by_epoch:
                self._evaluate()
            self._flush()
        except BaseException:
            self._log.keep()
            raise

    def _time_epoch(self, epoch: int, count: int) -> None:
        """Measure so many steps of an epoch at most."""
        for step in timed_steps(self.trainer, islice(self.prepared.local_batches(epoch), count)):
            self._log.pending.append(step)
            if self._log.must_flush:
                self._flush()

    def _flush(self) -> None:
        """Write the pending steps to the journal; all ranks call it after the same step.

        Raises RunError for a loss that is not finite, and what a signal asks for that user code swallowed.
        """
        before, losses, optimizer = self._log.written, self._log.flush(), self.prepared.optimizer
        for step, loss in enumerate(losses, before):
            if not math.isfinite(loss):
                remedy = f": try a smaller --lr than {optimizer.lr:g}" if optimizer is not None else ""
                raise RunError(f"the loss became {loss} in step {step}{remedy}")
        if losses and self.signals.requested:
            self.signals.terminate()

    def _evaluate(self) -> None:
        """Log accuracy, validation loss and the user's metrics, where there are any."""
        if self.prepared.evaluation.is_empty:
            return
        batches, objective = self.prepared.evaluated_batches(), self.prepared.data.objective
        figures = self.prepared.evaluation.figures(self.trainer, objective, batches)
        self.journal.extend({f"metrics.{name}": [value] for name, value in figures.items()})

    def record_digests(self) -> None:
        """Record optimizer state, digests of the trained weights and of their outputs, and peak memory."""
        device_map = self.observations.device_map(self.trainer.optimizers)
        outputs = self.trainer.evaluate(next(self.prepared.batches(0, shuffle=False)))
        numbered = {str(index): tensor for index, tensor in enumerate(tensors.walk(outputs))}
        weights = tensors.digest(self.trainer.complete_parameters() | self.trainer.buffers())
        digest = {"weights": weights, "outputs": tensors.digest(numbered)}
        self.journal.set(device_map=device_map, digest=digest, memory=self.observations.memory())
        self.journal.flush()

    def time_phases(self) -> None:
        """Time the phases of further steps. A pass of its own, because a recording timer costs overlap."""
        self.progress.begin("phases")
        timer = self.trainer.placed.timer
        batches = islice(self.prepared.endless_batches(), self._schedule.phase_steps)
        for batch in map(self.prepared.part, batches):
            self._group.barrier()
            with timer.step():
                self.trainer.step(batch)
        self.journal.set(phases=timer.phases, timeline=self.observations.timeline(timer.timeline))
        self.journal.flush()

    def profile(self) -> None:
        """Observe one further step, unless no further steps are wanted (``--phase-steps 0``)."""
        if not self._schedule.phase_steps:
            return
        batch, tokens = next(self.prepared.local_batches(0)), self.prepared.data.objective.tokens
        work, memory_use = profiled_step(self.trainer, batch, tokens)
        work, memory_use = self.observations.work(work), self.observations.memory_use(memory_use)
        self.journal.set({"memory_use": memory_use, **{f"work.{key}": value for key, value in work.items()}})
        self.journal.flush()

    def count_collectives(self) -> None:
        """Count what the ranks send in a further step of a full batch, and of a smaller last one.

        None where no further steps are wanted (``--phase-steps 0``). Its steps may end while gradients are
        accumulated, and so do those of ``profile_operators``: nothing is recorded of what they train.
        """
        if not (self._group.members and self._schedule.phase_steps):
            return
        first, last = next(self.prepared.batches(0)), self.prepared.batches_per_epoch - 1
        chosen = {last: self.prepared.as_last(first)} if last else {}
        batches = {number: self.prepared.part(batch) for number, batch in ({0: first} | chosen).items()}
        by_rank = self._group.all_gather(counted_collectives(self.trainer, batches))
        rows = [{"rank": rank, **row} for rank, of_rank in enumerate(by_rank) for row in of_rank]
        self.journal.set({"summary.collectives": rows})

    def profile_operators(self) -> None:
        """Take further steps of a full batch under ``torch.profiler`` (``--profile``)."""
        if not self._schedule.profile:
            return
        self.progress.begin("profile")
        batch = next(self.prepared.local_batches(0))
        copies = [batch.copied() for _ in range(WARM_UP + STEPS)]
        found = profile_steps(self.trainer, copies, self.journal.folder)
        self.journal.set({"work.profile": found})
        self.journal.flush()
