"""Judge: what of a step is over its limit on any rank, once rounding is measured; the worst errors so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpexp.distributed.group import ProcessGroup
from dpexp.verification.compare import Difference, Kinds, Limits, Noise, Parts, worst
from dpexp.verification.rounding import CERTAIN, largest


@dataclass
class Judge:
    """``limits`` are those of the latest step, ``unmeasured`` those without any measured rounding.

    ``errors`` has the worst difference of each kind on this rank, ``hidden`` one of each step in which
    rounding would hide an error.
    """

    limits: Limits
    group: ProcessGroup
    errors: dict[str, Difference] = field(default_factory=dict)
    hidden: dict[int, Difference] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unmeasured = self.limits

    def restart(self) -> None:
        """Forget what was found so far."""
        self.limits, self.errors, self.hidden = self.unmeasured, {}, {}

    def failed(
        self,
        step: int,
        kinds: Kinds,
        measured: Callable[[int], tuple[Kinds, Noise]] | None = None,
        draws: int = 0,
    ) -> Difference | None:
        """The worst of the first kind over its limit on any rank, if there is one; the same on every rank.

        Where it may be rounding, that of the single device is ``measured``, in one way after the other, until
        one explains the difference. Every rank must call this with the same kinds.
        """
        known, noise = dict(self.errors), list[Noise]()
        self.limits = self.unmeasured
        found = self._over(step, kinds)
        while found is not None and measured and math.isfinite(found.apart) and len(noise) < draws:
            of_kind = (each for key, each in self.limits.noise.items() if key[0] == found.kind)
            own = max((max(each, default=0.0) for each in of_kind), default=0.0)
            if 0 < CERTAIN * min(self.group.all_gather(own)) < found.apart:
                break
            kinds, of_draw = measured(len(noise))
            noise.append(of_draw)
            self.limits, self.errors = replace(self.unmeasured, noise=largest(noise, 1)), dict(known)
            found = self._over(step, kinds)
        return found

    def _over(self, step: int, kinds: Kinds) -> Difference | None:
        local = [self._added(step, kind, parts) for kind, parts in kinds.items()]
        of_kinds = [*zip(*self.group.all_gather(local), strict=True)]
        hidden = next((each for of_kind in of_kinds for _, each in of_kind if each is not None), None)
        if hidden is not None:
            self.hidden.setdefault(step, hidden)
        of_ranks = (worst(each for each, _ in of_kind) for of_kind in of_kinds)
        return next((each for each in of_ranks if each.ratio > 1), None)

    def _added(
        self, step: int, kind: str, parts: Mapping[str, Parts]
    ) -> tuple[Difference, Difference | None]:
        """The worst difference of a kind in this step, and one that rounding would hide."""
        judged = self.limits.judge(kind, step, parts).values()
        hidden = next((each for each in judged if not each.is_comparable), None)
        comparable = [each for each in judged if each.is_comparable]
        if not comparable:
            return Difference(kind, 0.0, step=step), hidden
        found = worst(comparable)
        self.errors[kind] = worst([found, self.errors.get(kind, found)])
        return found, hidden

    def of_all_ranks(self) -> dict[str, Difference]:
        """The worst difference of each kind on any rank; every rank must call this."""
        found: dict[str, Difference] = {}
        for of_rank in self.group.all_gather(self.errors):
            for kind, each in of_rank.items():
                found[kind] = worst([each, found.get(kind, each)])
        return found
