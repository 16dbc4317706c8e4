"""Judge: what of one step differs from a single device by more than rounding, on any rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from torch import nn

from dpexp.verification.compare import Difference, Kinds, Limits, Noise, Parts, noise_of
from dpexp.verification.rounding import DRAWS, MARGIN, largest
from dpexp.verification.trial import judge, worst_errors
from dpexp.watch.explain import FoundError, LoopFinding
from dpexp.watch.options import Options
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Replay


def drawn(kind: str, parts: Mapping[str, Parts]) -> Noise:
    """What rounding explains, by a single device that rounds otherwise beside one that does not."""
    return largest([noise_of({kind: parts})], MARGIN)


@dataclass(frozen=True)
class Judge:
    """Compares the laid out ``model`` with the single device ``replay`` in step ``number``.

    ``options`` are the user's. It adds to ``errors``, the worst of each kind, and to ``warnings``.
    """

    number: int
    model: nn.Module
    replay: Replay
    options: Options
    ranks: LoopRanks
    errors: dict[str, Difference]
    warnings: dict[str, None]

    def compare(
        self,
        kind: str,
        found: Mapping[str, Parts],
        rounding: Callable[[int, frozenset[str]], Noise],
        limits: Limits,
    ) -> Difference | None:
        """What differs on any rank. ``rounding(draw, names)`` is measured of what is over its limit on one.

        Every rank must call this.
        """

        def comparisons() -> Iterator[tuple[Kinds, Noise]]:
            yield {kind: found}, {}
            own = [name for name, each in limits.judge(kind, 0, found).items() if each.ratio > 1]
            over = frozenset(name for names in self.ranks.all_gather(own) for name in names)
            for draw in range(DRAWS):
                yield {kind: found}, rounding(draw, over)

        verdict = judge(self.number, comparisons(), limits, self.ranks)
        self.errors.update(worst_errors(self.errors, verdict.errors))
        if verdict.failed is None and (hidden := verdict.hidden) is not None:
            self.warn(f"rounding is too large to compare {hidden.kind} of '{hidden.tensor}'")
        return verdict.failed

    def warn(self, text: str) -> None:
        """Say it once."""
        self.warnings[text] = None

    def fail(self, kind: str, what: str, cause: str, worst: Difference | None = None) -> NoReturn:
        """Raise FoundError."""
        raise FoundError(LoopFinding(self.number, kind, what, cause, worst))
