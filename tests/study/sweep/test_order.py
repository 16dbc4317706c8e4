"""The order of a sweep's runs, and how often a drift or an effect of the place is taken for a difference."""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dpexp.report.analysis import estimates
from dpexp.report.analysis.intervals import CONFIDENCE, TWO_ROUNDS, Order, ratio_interval
from dpexp.report.analysis.looks import look_confidences
from dpexp.study.experiment.records import PlannedRun
from dpexp.study.sweep.order import balanced_rounds, unbalanced

Array = np.ndarray[Any, Any]
TRIALS, ORDERS, LAST = 4000, 200, 15
RUNS, CELLS = (2, 3, 5, 8), (2, 3, 4)
DRIFT, EFFECT, MOST = 0.02, 0.03, 0.06
NOISE = ((0.0005, 0.0), (0.005, 0.0), (0.02, 0.0), (0.02, 0.5))
"""Standard deviation between runs, from far below the disturbances to like them, and their correlation."""


def orders(cells: int, rounds: int, seed: int = 0) -> list[list[str]]:
    return balanced_rounds("ABCDEFGH"[:cells], rounds, f"seed {seed}")


@functools.cache
def places(cells: int) -> Array:
    """The place of each cell in each round, (trials, rounds, cells), by the order of many seeds."""
    found = [
        [[order.index(cell) for cell in "ABCDEFGH"[:cells]] for order in orders(cells, LAST, seed)]
        for seed in range(ORDERS)
    ]
    return np.resize(np.array(found), (TRIALS, LAST, cells))


# --- the design ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [1, 2, 3, 4, 5, 8])
def test_every_cell_has_every_place_and_follows_every_other_equally_often(cells: int) -> None:
    rounds = orders(cells, 2 * cells)
    assert all(sorted(order) == sorted(rounds[0]) for order in rounds)
    for place in range(cells):
        assert set(Counter(order[place] for order in rounds[:cells]).values()) == {1}
        assert set(Counter(order[place] for order in rounds).values()) == {2}
    followers = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert set(followers.values()) <= {2}
    assert len(followers) == cells * (cells - 1)


@pytest.mark.parametrize("cells", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_too_few_rounds_for_a_line_are_balanced_for_a_drift(rounds: int, cells: int) -> None:
    """All pairs of cells; but two rounds of more than two cells, which have no verdict."""
    if rounds == 2 < cells:
        return
    for one, other in itertools.combinations(range(cells), 2):
        apart = (places(cells)[:, :rounds, one] - places(cells)[:, :rounds, other]).astype(float)
        assert set(np.unique(estimates.of_rounds(apart, apart).freedom)) == {rounds - 1}


def test_more_rounds_begin_like_fewer_and_a_seed_has_one_order() -> None:
    assert orders(5, 3) == orders(5, 9)[:3]
    assert len({str(orders(3, 6, seed)) for seed in range(20)}) > 3


def test_two_cells_change_their_order_so_that_neighbours_are_of_one_cell_or_of_both() -> None:
    one, other = ("".join(order) for order in orders(2, 2))
    assert one == other[::-1]
    assert ["".join(order) for order in orders(2, 6)] == [one, other, other, one, one, other]


def test_what_cannot_be_balanced_is_said() -> None:
    planned = [PlannedRun(cell, number) for number in (1, 2, 3) for cell in "ABC"]
    assert list(unbalanced(planned, planned)) == []
    assert list(unbalanced(planned, planned[3:])) == []  # whole rounds are missing
    (two_rounds,) = unbalanced(planned[:6], planned[:6])
    assert "two rounds do not balance the order of 3 cells" in two_rounds
    assert list(unbalanced([run for run in planned[:6] if run.cell != "C"], [])) == []
    (apart,) = unbalanced(planned, [planned[1], *planned[5:]])
    assert apart.startswith("runs of round 1, 2 are made apart from its others")
    assert list(unbalanced(planned, [])) == []


# --- false differences ---------------------------------------------------------------------------


def noise(rng: np.random.Generator, cells: int, correlation: float) -> Array:
    """(trials, rounds, places): what each run has of its own, which depends on the run before."""
    runs = rng.standard_normal((TRIALS, LAST * cells))
    for number in range(1, runs.shape[1]) if correlation else ():
        runs[:, number] *= np.sqrt(1 - correlation**2)
        runs[:, number] += correlation * runs[:, number - 1]
    return runs.reshape(TRIALS, LAST, cells)


def disturbances(rng: np.random.Generator, cells: int) -> dict[str, Array]:
    """What a run's logarithm has from its moment, by kind: (trials, rounds, places), or what becomes that."""
    numbers = np.arange(LAST * cells).reshape(LAST, cells)
    place = np.arange(cells)
    return {
        "nothing": 0.0 * numbers,
        "steady drift": DRIFT * numbers,
        "slowing drift": DRIFT * LAST * cells * np.sqrt(numbers / (LAST * cells)),
        "first place": EFFECT * (place == 0) + 0.0 * numbers,
        "last place": EFFECT * (place == cells - 1) + 0.0 * numbers,
        "both ends": EFFECT * ((place == 0) | (place == cells - 1)) + 0.0 * numbers,
        "each place": EFFECT * place + 0.0 * numbers,
        "any places": EFFECT * rng.standard_normal((TRIALS, 1, cells)) + 0.0 * numbers,
    }


def by_pair(at_place: Array, cells: int) -> list[tuple[Array, Array]]:
    """(differences, how far apart) by round, (trials, rounds), of each two cells of a sweep."""
    of_cell = np.take_along_axis(np.broadcast_to(at_place, places(cells).shape), places(cells), axis=2)
    return [
        (of_cell[:, :, one] - of_cell[:, :, other], places(cells)[:, :, one] - places(cells)[:, :, other])
        for one, other in itertools.combinations(range(cells), 2)
    ]


def found(differences: Array, apart: Array, confidence: float = CONFIDENCE) -> Array:
    """Whether the interval of each trial leaves out zero."""
    estimate = estimates.of_rounds(differences, apart.astype(float))
    return np.asarray(np.abs(estimate.middle) > estimate.half(confidence) + 1e-12)


@pytest.mark.parametrize(("spread", "correlation"), NOISE)
@pytest.mark.parametrize("cells", CELLS)
def test_equal_cells_differ_in_less_than_6_percent_of_sweeps(
    cells: int, spread: float, correlation: float
) -> None:
    rng = np.random.default_rng(1)
    own = spread * noise(rng, cells, correlation)
    for kind, disturbance in disturbances(rng, cells).items():
        pairs = by_pair(own + disturbance, cells)
        for rounds in RUNS:
            if rounds == 2 < cells:
                continue  # no verdict: see below
            rate = np.mean([found(one[:, :rounds], apart[:, :rounds]) for one, apart in pairs])
            assert rate < MOST, (kind, rounds)


def test_two_rounds_of_more_than_two_cells_have_no_verdict() -> None:
    """Reversed, a round gives both ends to the same cells: an effect of these places cannot be told apart."""
    figures, order = ({1: 1.0, 2: 1.001}, {1: 2.0, 2: 2.001}), Order({1: 5.0, 2: -5.0}, 3)
    refused = ratio_interval(*figures, order=order)
    assert (refused.is_known, refused.why) == (False, TWO_ROUNDS)
    assert ratio_interval(*figures, order=Order(order.apart, 2)).high < 1


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("cells", CELLS)
def test_looking_after_every_round_finds_less_than_6_percent_too(cells: int, first: int) -> None:
    rng = np.random.default_rng(2)
    own = 0.005 * noise(rng, cells, 0.0)
    kinds, looks = disturbances(rng, cells), dict(look_confidences(first, LAST))
    if cells > 2:
        looks.pop(2, None)  # no verdict
    for kind in ("nothing", "steady drift", "first place", "any places"):
        differs = [
            np.any([found(one[:, :rounds], apart[:, :rounds], looks[rounds]) for rounds in looks], axis=0)
            for one, apart in by_pair(own + kinds[kind], cells)
        ]
        assert np.mean(differs) < MOST, kind


def test_in_random_order_a_drift_would_be_taken_for_a_difference() -> None:
    """What the balance is for: three rounds of two cells, each in an order of its own, and Student's t."""
    rng = np.random.default_rng(3)
    apart = rng.choice([-1.0, 1.0], (TRIALS, 3))
    estimate = estimates.mean(DRIFT * apart + 0.005 * rng.standard_normal(apart.shape))
    assert np.mean(np.abs(estimate.middle) > estimate.half(CONFIDENCE)) > 2 * MOST


@pytest.mark.parametrize("cells", CELLS)
def test_a_difference_is_found_beside_a_drift_and_an_effect_of_the_place(cells: int) -> None:
    """Where runs differ by 1%: from five runs on 5%, with three runs 25%."""
    rng = np.random.default_rng(4)
    own, kinds = 0.01 * noise(rng, cells, 0.0), disturbances(rng, cells)
    for kind in ("nothing", "steady drift", "first place", "last place", "each place"):
        pairs = by_pair(own + kinds[kind], cells)
        for rounds, difference in ((3, 0.25), (5, 0.05), (8, 0.05)):
            shares = [found(one[:, :rounds] + difference, apart[:, :rounds]) for one, apart in pairs]
            assert np.mean(shares) > 0.9, (kind, rounds)
