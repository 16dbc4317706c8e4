"""Judge: what of one step differs from a single device by more than rounding, on any rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from torch import nn

from dpexp.verification.compare import Difference, Kinds, Limits, Noise, noise_of, parts_of
from dpexp.verification.rounding import DRAWS, MARGIN, largest
from dpexp.verification.trial import judge, worst_errors
from dpexp.watch.expected import Tensors
from dpexp.watch.explain import FoundError, LoopFinding
from dpexp.watch.options import Options
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Replay


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
        found: Tensors,
        expected: Tensors,
        rounded: Callable[[int], Tensors],
        limits: Limits,
    ) -> Difference | None:
        """What differs on any rank; ``rounded(draw)`` is expected, rounded otherwise. All call this."""

        def comparisons() -> Iterator[tuple[Kinds, Noise]]:
            kinds = {kind: parts_of(found, expected)}
            yield kinds, {}
            for draw in range(DRAWS):
                again = rounded(draw) if kind == "gradients" else self.ranks.together(partial(rounded, draw))
                yield kinds, largest([noise_of({kind: parts_of(again, expected)})], MARGIN)

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
