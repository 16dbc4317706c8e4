"""Power: a difference that would show, as a comparison says, is found by four of five such comparisons."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpexp.report import intervals
from dpexp.report.intervals import CONFIDENCE, POWER, Estimate, Interval, least_found, ratio_interval

Array = np.ndarray[Any, Any]
TRIALS, SPREAD = 20_000, 0.03
RUNS = (2, 3, 5, 8)


@functools.cache
def runs(seed: int, rounds: int) -> Array:
    """Logarithms of runs of one cell."""
    return SPREAD * np.random.default_rng(seed).standard_normal((TRIALS, rounds))


def paired(rounds: int, seed: int, difference: Array | float = 0.0) -> Estimate:
    return intervals.mean(runs(seed, rounds) - runs(seed + 1, rounds) + np.reshape(difference, (-1, 1)))


def of_others(rounds: int, seed: int, difference: Array | float = 0.0) -> Estimate:
    return intervals.difference(runs(seed, rounds) + np.reshape(difference, (-1, 1)), runs(seed + 1, rounds))


def share_found(of: Callable[..., Estimate], rounds: int) -> float:
    """How often a further comparison finds the difference that one before said would show."""
    before = of(rounds, 0)
    freedom = int(np.max(before.freedom))
    further = of(rounds, 2, least_found(freedom, CONFIDENCE) * before.error)
    return float(np.mean(np.abs(further.middle) > further.half(CONFIDENCE)))


@pytest.mark.parametrize("rounds", RUNS)
def test_four_of_five_further_sweeps_find_what_would_show(rounds: int) -> None:
    assert share_found(paired, rounds) == pytest.approx(POWER, abs=0.015)


@pytest.mark.parametrize("rounds", RUNS)
def test_runs_that_are_not_paired_find_no_less(rounds: int) -> None:
    """Their degrees of freedom are a lower bound."""
    assert POWER - 0.015 < share_found(of_others, rounds) < 0.92


def test_an_interval_has_what_would_show_as_a_factor() -> None:
    figures = {1: 1.0, 2: 1.1, 3: 1.05}, {1: 1.0, 2: 1.0, 3: 1.02}
    logs = np.log([one / other for one, other in zip(*(each.values() for each in figures), strict=True)])
    expected = np.exp(least_found(2, CONFIDENCE) * logs.std(ddof=1) / np.sqrt(3))
    assert ratio_interval(*figures).least_seen == pytest.approx(expected)


def test_what_would_show_reads_as_a_share_or_as_a_factor() -> None:
    assert Interval(1.0, 0.9, 1.1, 1.041).seen_text == "4.1% would show"
    assert Interval(1.0, 0.1, 9.0, 3.2).seen_text == "3.20x would show"
    assert Interval(1.0, 0.1, 9.0, 1e5).seen_text == "100x would not show"
    assert Interval(1.0).seen_text == ""
