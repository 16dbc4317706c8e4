"""Step log: measured steps on their way to the journal.

They stay in memory (a loss on its accelerator) until the next flush, which happens between two steps.
"""

import torch

from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.signals import SignalHandler
from dpexp.engine.progress import ProgressBar
from dpexp.measurement.steps import TimedStep
from dpexp.record.journal import FLUSH_SECONDS, Journal


class StepLog:
    """``written`` counts the steps in the journal.

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
    """The losses as numbers; those on an accelerator are read together."""
    on_device = [loss for loss in losses if isinstance(loss, torch.Tensor)]
    if not on_device:
        return [float(loss) for loss in losses]
    return torch.stack(on_device).cpu().double().tolist()  # MPS has no float64
