"""Judge: what of a step is over its limit on any rank, once rounding is measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dpexp.distributed.group import ProcessGroup
from dpexp.verification.compare import Difference, Kinds, Limits, Noise, Parts, worst
from dpexp.verification.rounding import CERTAIN, largest


@dataclass(frozen=True)
class Verdict:
    """What ``failed``, with the ``limits`` that said so: the same on every rank, None where nothing did.

    ``errors`` has the worst difference of each kind on this rank; ``hidden`` is one that rounding would hide.
    """

    limits: Limits
    failed: Difference | None = None
    errors: Mapping[str, Difference] = field(default_factory=dict)
    hidden: Difference | None = None


def judge(
    step: int, comparisons: Iterable[tuple[Kinds, Noise]], limits: Limits, group: ProcessGroup
) -> Verdict:
    """The worst of the first kind that is over its limit on any rank after one comparison after the other.

    Each has what differs, and what rounding explains of it. The first one that explains everything is the
    last that is made, and so is one that leaves no doubt. Every rank must call this with the same kinds.
    """
    noise, verdict = list[Noise](), Verdict(limits)
    for kinds, explained in comparisons:
        noise.append(explained)
        measured = replace(limits, noise=largest(noise, 1))
        verdict = _judged(step, kinds, measured, group, verdict.hidden)
        if verdict.failed is None or _is_certain(verdict.failed, measured, group):
            break
    return verdict


def _is_certain(failed: Difference, limits: Limits, group: ProcessGroup) -> bool:
    """Whether more measurements of rounding cannot explain it."""
    if not math.isfinite(failed.apart):
        return True
    of_kind = (each for key, each in limits.noise.items() if key[0] == failed.kind)
    own = max((max(each, default=0.0) for each in of_kind), default=0.0)
    return bool(0 < CERTAIN * min(group.all_gather(own)) < failed.apart)


def _judged(
    step: int, kinds: Kinds, limits: Limits, group: ProcessGroup, hidden: Difference | None
) -> Verdict:
    own = [_of_kind(step, kind, parts, limits) for kind, parts in kinds.items()]
    by_kind = [*zip(*group.all_gather(own), strict=True)]
    found = next((each for of_kind in by_kind for _, each in of_kind if each is not None), None)
    of_ranks = [[each for each, _ in of_kind if each is not None] for of_kind in by_kind]
    failed = next((each for each in map(worst, filter(None, of_ranks)) if each.ratio > 1), None)
    errors = {each.kind: each for each, _ in own if each is not None}
    return Verdict(limits, failed, errors, hidden or found)


def _of_kind(
    step: int, kind: str, parts: Mapping[str, Parts], limits: Limits
) -> tuple[Difference | None, Difference | None]:
    """The worst difference of a kind that can be compared, and one that rounding would hide."""
    judged = limits.judge(kind, step, parts).values()
    hidden = next((each for each in judged if not each.is_comparable), None)
    comparable = [each for each in judged if each.is_comparable]
    return worst(comparable) if comparable else None, hidden


def worst_errors(*errors: Mapping[str, Difference]) -> dict[str, Difference]:
    """The worst difference of each kind of all of these; of two alike the later one."""
    found = dict[str, Difference]()
    for of_step in errors:
        for kind, each in of_step.items():
            found[kind] = worst([each, found.get(kind, each)])
    return found


def worst_of_ranks(errors: Mapping[str, Difference], group: ProcessGroup) -> dict[str, Difference]:
    """The worst difference of each kind on any rank; every rank must call this."""
    return worst_errors(*group.all_gather(dict(errors)))
