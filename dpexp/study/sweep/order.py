"""Order: in which order each round of a sweep runs its cells.

::

    two cells    AB BA   BA AB   AB BA        three    BCA CAB ABC   CBA BAC ACB

The rounds are rows of a Williams design (1949): Latin squares in which every cell has every place equally
often and follows every other equally often, so that neither a place nor a steady drift from run to run adds
more to one cell than to another. Few rounds are only a part of it: each is the row that repeats the fewest
places, then balances a drift best, then keeps the runs of a cell apart, because neighbours have most in
common. The square of an odd number of cells is followed by its mirror image, as the design has it.

The first rounds of a longer sweep are those of a shorter one, so that rounds can be added.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from dpexp.study.experiment.records import PlannedRun


def balanced_rounds(cells: Sequence[str], rounds: int, seed: str) -> list[list[str]]:
    """The order of the cells in each of so many rounds; the seed decides which cell is which letter."""
    return list(islice(_rounds(cells, random.Random(seed)), rounds))


def unbalanced(planned: Sequence[PlannedRun], missing: Sequence[PlannedRun]) -> Iterator[str]:
    """What the order of a sweep does not balance, of which only the ``missing`` runs are to be made."""
    cells, rounds = ({getattr(run, name) for run in planned} for name in ("cell", "round"))
    if len(rounds) == 2 < len(cells):
        yield (
            f"two rounds do not balance the order of {len(cells)} cells: no difference in time gets a "
            "verdict; a third round gives it one"
        )
    late = Counter(run.round for run in missing)
    apart = [number for number, count in sorted(late.items()) if count < len(cells)]
    if apart and len(missing) < len(planned):
        rounds_of = ", ".join(map(str, apart))
        yield f"runs of round {rounds_of} are made apart from its others: a drift is not balanced there"


def _rounds(cells: Sequence[str], rng: random.Random) -> Iterator[list[str]]:
    """Rounds without end: all rows of the design, then all of them again."""
    rows = _square(rng.sample(cells, len(cells)))
    rng.shuffle(rows)
    before: list[list[str]] = []
    while True:
        left = [*rows]
        while left:
            before.append(min(left, key=_Balance(before).after))
            left.remove(before[-1])
            yield before[-1]
        for row in before[: -len(rows) - 1 : -1] * (len(cells) % 2):
            before.append(row[::-1])
            yield before[-1]


def _square(letters: Sequence[str]) -> list[list[str]]:
    """The first row takes the letters from both ends in turn; each other is the one before shifted by one."""
    count = len(letters)
    first = [-(place // 2) if place % 2 == 0 else (place + 1) // 2 for place in range(count)]
    return [[letters[(number + shift) % count] for number in first] for shift in range(count)]


class _Balance:
    """How well a further round would balance those before."""

    def __init__(self, before: Sequence[Sequence[str]]) -> None:
        self._places = Counter(pair for row in before for pair in enumerate(row))
        self._totals = Counter[str]()
        for row in before:
            self._totals.update(_from_middle(row))
        self._last = before[-1] if before else ()

    def after(self, row: Sequence[str]) -> tuple[int, int, float]:
        """(places repeated, imbalance of a drift, nearness of a cell's two runs), of which less is better."""
        repeated = sum(self._places[pair] for pair in enumerate(row))
        drift = sum((self._totals[cell] + moment) ** 2 for cell, moment in _from_middle(row).items())
        ago = {cell: len(self._last) - place for place, cell in enumerate(self._last)}
        return repeated, drift, sum(0.5 ** (place + ago[cell]) for place, cell in enumerate(row) if ago)


def _from_middle(row: Sequence[str]) -> dict[str, int]:
    """How long after the middle of its round each cell runs, in halves of a run."""
    return {cell: 2 * place - len(row) + 1 for place, cell in enumerate(row)}
