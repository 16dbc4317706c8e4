"""Errors: those of two sides over all their steps, on which all ranks agree."""

import math
from collections.abc import Mapping, Sequence

from dpexp.distributed.process_group import ProcessGroup
from dpexp.verification.limits.compare import Difference, Limits, noise_of, worst
from dpexp.verification.limits.parts import Parts


class Errors:
    """``worst`` has the worst difference of each kind over all steps, on this rank.

    ``hidden`` has a difference of each step in which rounding would hide an error, the same on all ranks.
    With ``measures`` no error fails: how far apart both sides are is added to ``noise``, where it is over the
    tolerance, if there is one.
    """

    def __init__(self, limits: Limits, group: ProcessGroup, measures: bool = False) -> None:
        self.limits, self.group, self._measures = limits, group, measures
        self._least = 0.0 if math.isinf(limits.tolerance) else limits.tolerance
        self.worst: dict[str, Difference] = {}
        self.hidden: dict[int, Difference] = {}
        self.noise: dict[tuple[str, int, str], Sequence[float]] = {}

    def failed(self, step: int, kinds: Mapping[str, Mapping[str, Parts]]) -> Difference | None:
        """Add those of a step; returns the worst of the first kind over its limit on any rank.

        Every rank must call this, with the same kinds.
        """
        if self._measures:
            self.noise |= noise_of(kinds, step, self._least)
            return None
        local = [self._add(kind, step, tensors) for kind, tensors in kinds.items()]
        of_kinds = [*zip(*self.group.all_gather(local), strict=True)]
        hidden = next((each for of_kind in of_kinds for _, each in of_kind if each is not None), None)
        if hidden is not None:
            self.hidden.setdefault(step, hidden)
        of_ranks = (worst([each for each, _ in of_kind]) for of_kind in of_kinds)
        return next((each for each in of_ranks if each.ratio > 1), None)

    def _add(
        self, kind: str, step: int, tensors: Mapping[str, Parts]
    ) -> tuple[Difference, Difference | None]:
        found, hidden = self.limits.largest(kind, step, tensors)
        if found is None:
            return Difference(kind, 0.0, step=step), hidden
        known = self.worst.get(kind)
        self.worst[kind] = worst([found, *([known] if known else [])])
        return found, hidden

    def of_all_ranks(self) -> dict[str, Difference]:
        """The worst difference of each kind on any rank; every rank must call this."""
        found: dict[str, Difference] = {}
        for of_rank in self.group.all_gather(self.worst):
            for kind, each in of_rank.items():
                found[kind] = worst([each, *([found[kind]] if kind in found else [])])
        return found
