"""Power: a difference that would show, as a comparison says, is found by four of five such comparisons."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpexp.report.analysis import estimates
from dpexp.report.analysis.estimates import Estimate
from dpexp.report.analysis.intervals import CONFIDENCE, Interval, Order, ratio_interval
from dpexp.report.analysis.looks import look_confidences
from dpexp.report.analysis.power import POWER, least_found

Array = np.ndarray[Any, Any]
TRIALS, SPREAD, DRIFT = 20_000, 0.03, 0.02
RUNS = (2, 3, 5, 8)


def apart(rounds: int) -> Array:
    return np.resize([1.0, -1.0, -1.0, 1.0], rounds)


@functools.cache
def runs(seed: int, rounds: int) -> Array:
    """Logarithms of runs of one cell."""
    return SPREAD * np.random.default_rng(seed).standard_normal((TRIALS, rounds))


def of_rounds(rounds: int, drift: float, seed: int, difference: Array | float = 0.0) -> Estimate:
    ratios = runs(seed, rounds) - runs(seed + 1, rounds) + drift * apart(rounds)
    return estimates.of_rounds(ratios + np.reshape(difference, (-1, 1)), apart(rounds))


def of_others(rounds: int, drift: float, seed: int, difference: Array | float = 0.0) -> Estimate:
    return estimates.difference(runs(seed, rounds) + np.reshape(difference, (-1, 1)), runs(seed + 1, rounds))


def share_found(
    of: Callable[..., Estimate], rounds: int, drift: float, confidence: float = CONFIDENCE
) -> float:
    """How often a further comparison finds the difference that one before said would show."""
    before = of(rounds, drift, 0)
    freedom = int(np.max(before.freedom))
    further = of(rounds, drift, 2, least_found(freedom, confidence) * before.error)
    return float(np.mean(np.abs(further.middle) > further.half(confidence)))


@pytest.mark.parametrize("rounds", RUNS)
def test_four_of_five_further_sweeps_find_what_would_show(rounds: int) -> None:
    """Also at another confidence, as of one look of several."""
    assert share_found(of_rounds, rounds, 0.0) == pytest.approx(POWER, abs=0.015)
    assert share_found(of_rounds, rounds, 0.0, look_confidences(2, 8)[rounds]) == pytest.approx(
        POWER, abs=0.015
    )


@pytest.mark.parametrize("rounds", RUNS)
def test_a_drift_is_in_what_would_show(rounds: int) -> None:
    """Few rounds do not take it out of the spread, and find no less; from five on it costs nothing."""
    found = share_found(of_rounds, rounds, DRIFT)
    assert found == pytest.approx(POWER, abs=0.015) if rounds >= 5 else found > POWER - 0.015


@pytest.mark.parametrize("rounds", RUNS)
def test_runs_that_are_not_paired_find_no_less(rounds: int) -> None:
    """Their degrees of freedom are a lower bound."""
    assert POWER - 0.015 < share_found(of_others, rounds, 0.0) < 0.92


def test_an_interval_has_what_would_show_as_a_factor() -> None:
    figures = {1: 1.0, 2: 1.1, 3: 1.05}, {1: 1.0, 2: 1.0, 3: 1.02}
    logs = np.log([one / other for one, other in zip(*(each.values() for each in figures), strict=True)])
    expected = np.exp(least_found(2, CONFIDENCE) * logs.std(ddof=1) / np.sqrt(3))
    order = Order({1: 1.0, 2: -1.0, 3: -1.0}, 2)
    assert ratio_interval(*figures).least_seen == pytest.approx(expected)
    assert ratio_interval(*figures, order=order).least_seen == pytest.approx(expected)


def test_what_would_show_reads_as_a_share_or_as_a_factor() -> None:
    assert Interval(1.0, 0.9, 1.1, 1.041).seen_text == "4.1% would show"
    assert Interval(1.0, 0.1, 9.0, 3.2).seen_text == "3.20x would show"
    assert Interval(1.0, 0.1, 9.0, 1e5).seen_text == "100x would not show"
    assert Interval(1.0).seen_text == ""
