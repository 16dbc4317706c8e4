"""Step log: measured steps on their way to the journal.

They stay in memory (a loss on its accelerator) until the next flush, which happens between two steps.
"""

import time

import torch

from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.signals import SignalHandler
from dpexp.engine.progress import ProgressBar
from dpexp.measurement.steps import TimedStep
from dpexp.record.journal import Journal

FLUSH_SECONDS = 0.5
"""Flush interval: the longest time that measured steps wait in memory, where a SIGKILL loses them. Several
ranks flush after the number of steps that took this long before."""


class StepLog:
    """``written`` counts the steps in the journal.

    All ranks add the same steps, and call every method after the same one.
    """

    def __init__(
        self,
        journal: Journal,
        group: ProcessGroup,
        signals: SignalHandler,
        progress: ProgressBar,
    ) -> None:
        self.written, self.pending = 0, list[TimedStep]()
        self._journal, self._group, self._signals = journal, group, signals
        self._progress = progress
        self._steps_per_flush = 1  # of several ranks
        self.restart_interval()

    def restart_interval(self) -> None:
        """The flush interval begins now."""
        self._flush_at = time.perf_counter() + FLUSH_SECONDS

    @property
    def must_flush(self) -> bool:
        """Whether the flush interval is over, or a signal waits for a flush."""
        if self._group.size > 1:
            return len(self.pending) >= self._steps_per_flush
        return time.perf_counter() >= self._flush_at or self._signals.requested

    def flush(self) -> list[float]:
        """Write the pending steps to the journal; returns their losses, of the rows of all ranks."""
        if not self.pending:
            return []
        times_ms, wall_ms, losses = self._gather()
        self._write(times_ms, wall_ms, losses)
        self._journal.flush()
        self.restart_interval()
        self._progress.advance(len(losses), times_ms[-1], losses[-1])
        return losses

    def keep(self) -> None:
        """After an error: write what this process has, unless only all ranks together know the losses."""
        if self._group.size == 1 and self.pending:
            times_ms, wall_ms = self._times()
            self._write(times_ms, wall_ms, [float(step.loss) for step in self.pending])

    def _times(self) -> tuple[list[float], list[float]]:
        """(times, wall times) in ms of this rank's pending steps."""
        return [step.ms for step in self.pending], [step.wall_ms for step in self.pending]

    def _gather(self) -> tuple[list[float], list[float], list[float]]:
        """(times in ms, wall times in ms, losses) of the pending steps, the same on all ranks.

        The times of a step are those of its slowest rank. Its loss is that of the rows of all ranks.
        """
        (times_ms, wall_ms), losses = self._times(), _on_host([step.loss for step in self.pending])
        if self._group.size == 1:
            return times_ms, wall_ms, losses
        terms = [
            loss * step.weight if step.weight else 0.0
            for loss, step in zip(losses, self.pending, strict=True)
        ]
        by_rank = self._group.all_gather([*terms, *times_ms, *wall_ms])
        by_step = list(zip(*by_rank, strict=True))
        by_dp_rank = zip(*self._group.one_of_each_dp_rank(by_rank), strict=True)
        losses = [sum(rank_terms) for rank_terms in by_dp_rank][: len(terms)]
        slowest = [max(rank_times) for rank_times in by_step[len(terms) :]]
        times_ms, wall_ms = slowest[: len(terms)], slowest[len(terms) :]
        mean_ms = sum(times_ms) / len(times_ms)
        self._steps_per_flush = max(1, min(1000, round(FLUSH_SECONDS * 1e3 / max(mean_ms, 1e-3))))
        return times_ms, wall_ms, losses

    def _write(self, times_ms: list[float], wall_ms: list[float], losses: list[float]) -> None:
        times = {"steps.time_ms": times_ms, "steps.wall_ms": wall_ms}
        rounded = {key: [round(ms, 6) for ms in values] for key, values in times.items()}
        rows = [step.rows for step in self.pending]
        self._journal.extend({**rounded, "steps.loss": losses, "steps.samples": rows})
        self.written += len(losses)
        self.pending = []


def _on_host(losses: list[float | torch.Tensor]) -> list[float]:
    """The losses as numbers; those on an accelerator are read together."""
    on_device = [loss for loss in losses if isinstance(loss, torch.Tensor)]
    if not on_device:
        return [float(loss) for loss in losses]
    return torch.stack(on_device).cpu().double().tolist()  # MPS has no float64
