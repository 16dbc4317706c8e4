"""Passes: a prepared run from its verification to its last pass. Facts go to the journal as found."""

import math
from dataclasses import dataclass
from itertools import islice

import torch

from dpexp import tensors
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.signals import SignalHandler
from dpexp.engine.observations import Observations
from dpexp.engine.prepared import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.run_globals import seeded_ranks
from dpexp.engine.verify import Verification
from dpexp.measurement.collectives import counted_collectives
from dpexp.measurement.step_profile import profiled_step
from dpexp.measurement.steps import STEPS, WARM_UP, TimedStep, profile_steps, timed_steps
from dpexp.record.journal import FLUSH_SECONDS, Journal
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
            placed = prepared.strategy.lay_out(prepared.model, prepared.selection.used, timer)
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
        verification.last(measurement.log.written)  # further steps, from the trained state
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
        self.log = StepLog(self.journal, self._group, self.signals, self.progress)

    def warm_up(self) -> None:
        """Take steps that are not measured, until allocators, caches and autotuning are warm."""
        self.progress.begin("warm up")
        batches = islice(self.prepared.endless_batches(), self._schedule.warmup)
        self.verification.first(self.trainer, batches)
        for batch in batches:
            self.trainer.step(self.prepared.part(batch))

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
            self.log.keep()
            raise

    def _time_epoch(self, epoch: int, count: int) -> None:
        for step in timed_steps(self.trainer, islice(self.prepared.local_batches(epoch), count)):
            self.log.pending.append(step)
            if self.log.must_flush:
                self._flush()

    def _flush(self) -> None:
        """Write the pending steps to the journal; all ranks call it after the same step.

        Raises RunError for a loss that is not finite, and what a signal asks for that user code swallowed.
        """
        before, losses, optimizer = self.log.written, self.log.flush(), self.prepared.optimizer
        for step, loss in enumerate(losses, before):
            if not math.isfinite(loss):
                remedy = f": try a smaller --lr than {optimizer.lr:g}" if optimizer is not None else ""
                raise RunError(f"the loss became {loss} in step {step}{remedy}")
        if losses and self.signals.requested:
            self.signals.terminate()

    def _evaluate(self) -> None:
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


class StepLog:
    """Measured steps on their way to the journal; ``written`` counts those that are in it.

    They stay in memory (a loss on its accelerator) until the next flush, which happens between two steps.
    All ranks add the same steps, and call every method after the same one.
    """

    def __init__(
        self, journal: Journal, group: ProcessGroup, signals: SignalHandler, progress: ProgressBar
    ) -> None:
        self.written, self.pending = 0, list[TimedStep]()
        self._journal, self._group, self._signals = journal, group, signals
        self._progress = progress
        self._steps_per_flush = 1  # of several ranks: as many as took the flush interval before

    @property
    def must_flush(self) -> bool:
        """Whether the flush interval is over, or a signal waits for a flush."""
        if self._group.size > 1:
            return len(self.pending) >= self._steps_per_flush
        return self._journal.is_due or self._signals.requested

    def flush(self) -> list[float]:
        """Write the pending steps to the journal; returns their losses, of the rows of all ranks."""
        if not self.pending:
            return []
        steps = self._of_all_ranks()
        self._write(steps)
        self._journal.flush(burst=0)
        last_ms, _, last_loss = steps[-1]
        self._progress.advance(len(steps), last_ms, last_loss)
        return [loss for _, _, loss in steps]

    def keep(self) -> None:
        """After an error: write what this process has, unless only all ranks together know the losses."""
        if self._group.size == 1 and self.pending:
            self._write(self._of_all_ranks())

    def _of_all_ranks(self) -> list[tuple[float, float, float]]:
        """(ms, wall ms, loss) of each pending step, the same on all ranks.

        The times of a step are those of its slowest rank. Its loss is that of the rows of all ranks.
        """
        group, losses = self._group, _on_host([step.loss for step in self.pending])
        steps = list(zip(self.pending, losses, strict=True))
        if group.size == 1:
            return [(step.ms, step.wall_ms, loss) for step, loss in steps]
        terms = [(step.ms, step.wall_ms, loss * step.weight if step.weight else 0.0) for step, loss in steps]
        gathered = []
        for by_rank in zip(*group.all_gather(terms), strict=True):
            ms, wall_ms, _ = map(max, zip(*by_rank, strict=True))
            gathered.append((ms, wall_ms, sum(term for _, _, term in group.one_of_each_dp_rank(by_rank))))
        mean_ms = sum(ms for ms, _, _ in gathered) / len(gathered)
        self._steps_per_flush = max(1, min(1000, round(FLUSH_SECONDS * 1e3 / max(mean_ms, 1e-3))))
        return gathered

    def _write(self, steps: list[tuple[float, float, float]]) -> None:
        times_ms, wall_ms, losses = map(list, zip(*steps, strict=True))
        times = {"steps.time_ms": times_ms, "steps.wall_ms": wall_ms}
        rounded = {key: [round(ms, 6) for ms in values] for key, values in times.items()}
        rows = [step.rows for step in self.pending]
        self._journal.extend({**rounded, "steps.loss": losses, "steps.samples": rows})
        self.written += len(steps)
        self.pending = []


def _on_host(losses: list[float | torch.Tensor]) -> list[float]:
    on_device = [loss for loss in losses if isinstance(loss, torch.Tensor)]
    if not on_device:
        return [float(loss) for loss in losses]
    return torch.stack(on_device).cpu().double().tolist()  # MPS has no float64
