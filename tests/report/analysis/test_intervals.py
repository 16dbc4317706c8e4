"""Intervals over runs: how often they find a difference where there is none, and how wide they are."""

import dataclasses
import functools
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from command_lines import ROOT

from dpexp.report import units
from dpexp.report.analysis import estimates
from dpexp.report.analysis.estimates import Estimate
from dpexp.report.analysis.intervals import (
    CONFIDENCE,
    ONE_ORDER,
    Interval,
    Order,
    against_one,
    of_runs,
    ratio_interval,
    typical,
)
from dpexp.report.analysis.looks import look_confidences, over_looks
from dpexp.report.analysis.power import least_found

Array = np.ndarray[Any, Any]
PAGE = ROOT / "docs" / "definitions.md"
TRIALS, STEPS, LAST = 5000, 24, 15
RUNS = (2, 3, 5, 8)
SPREADS = ((0.0, 0.1), (0.02, 0.1), (0.3, 0.1))
"""Relative spreads between the runs of a cell and between the steps of a run."""
MOST = 0.06


@functools.cache
def run_medians(between: float, within: float, correlation: float, seed: int) -> Array:
    """Logarithms of the medians of equal runs, (trials, runs); a step depends on the one before it."""
    rng = np.random.default_rng(seed)
    shape = (TRIALS, max(RUNS))
    step = rng.standard_normal(shape)
    steps = [step]
    for _ in range(STEPS - 1):
        step = correlation * step + math.sqrt(1 - correlation**2) * rng.standard_normal(shape)
        steps.append(step)
    return np.median(within * np.array(steps), axis=0) + between * rng.standard_normal(shape)


def found(estimate: Estimate, confidence: float = CONFIDENCE) -> float:
    """The share of trials whose interval finds a difference although there is none."""
    return float(np.mean(np.abs(estimate.middle) > estimate.half(confidence)))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("between", "within"), SPREADS)
@pytest.mark.parametrize("runs", RUNS)
def test_equal_cells_differ_in_at_most_6_percent_of_comparisons(
    runs: int, between: float, within: float, correlation: float
) -> None:
    first = run_medians(between, within, correlation, 1)[:, :runs]
    second = run_medians(between, within, correlation, 2)[:, :runs]
    drift = np.linspace(0, 1, runs)  # of the machine, which all cells of a round share
    assert found(estimates.mean((first + drift) - (second + drift))) <= MOST
    assert found(estimates.mean(first)) <= MOST  # a cell whose true figure is 1
    assert found(estimates.difference(first, second)) <= MOST
    assert found(estimates.difference(first, 10 * second)) <= MOST


@pytest.mark.parametrize(
    ("runs", "others"), [pair for pair in itertools.product(RUNS, RUNS) if pair[0] < pair[1]]
)
def test_cells_of_unequal_numbers_of_runs_are_no_exception(runs: int, others: int) -> None:
    for factor in (0.1, 0.3, 1.0, 3.0):
        first = run_medians(0.3, 0.1, 0.0, 1)[:, :runs]
        second = factor * run_medians(0.3, 0.1, 0.0, 2)[:, :others]
        assert found(estimates.difference(first, second)) <= MOST


@pytest.mark.parametrize("runs", [[1.0, 1.2], [3.0, 2.0, 2.5], [5.0, 5.1, 4.9, 5.3, 5.2, 6.0]])
def test_a_further_run_is_judged_by_the_spread_of_one_run_and_not_of_their_mean(runs: list[float]) -> None:
    """A run varies as the others do, and their mean varies as well: both count."""
    logs, other = [math.log(each) for each in runs], 3.0
    count, middle = len(runs), statistics.mean(logs)
    t = {2: 12.7062047364, 3: 4.3026527297, 6: 2.5705818366}[count]  # of 95%, with one degree less
    half = t * math.sqrt(statistics.variance(logs) + statistics.variance(logs) / count)
    found = against_one(runs, other)
    value = math.exp(middle) / other
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.low == pytest.approx(value * math.exp(-half), rel=1e-9)
    assert found.high == pytest.approx(value * math.exp(half), rel=1e-9)


def test_the_documented_widths_are_those_of_the_simulation() -> None:
    """Runs of both cells differ by 5%: how far the ends of the interval are from the ratio, in the median."""
    row = r"^\| (\d) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|"
    rows = re.findall(row, PAGE.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(RUNS)
    for runs, rate, *widths, shown in rows:
        first, second = (0.05 * run_medians(1.0, 0.0, 0.0, seed)[:, : int(runs)] for seed in (1, 2))
        of_rounds = estimates.of_rounds(first - second, np.resize([1.0, -1.0, -1.0, 1.0], int(runs)))
        assert 100 * found(of_rounds) == pytest.approx(float(rate), abs=0.1)
        for estimate, width in zip((of_rounds, estimates.difference(first, second)), widths, strict=True):
            half = np.median(estimate.half(CONFIDENCE))
            assert 100 * (np.exp(half) - 1) == pytest.approx(float(width), rel=0.02)
        seen = least_found(int(of_rounds.freedom), CONFIDENCE) * np.median(of_rounds.error)
        assert 100 * (np.exp(seen) - 1) == pytest.approx(float(shown), rel=0.02)


def test_looking_after_every_round_finds_no_more() -> None:
    logs = np.random.default_rng(3).standard_normal((TRIALS, LAST))
    looks = look_confidences(5, LAST)
    assert list(looks) == list(range(5, LAST + 1))
    rates = {}
    for kind in ("spent", "naive"):
        differs = np.zeros(TRIALS, dtype=bool)
        for rounds, confidence in looks.items():
            estimate = estimates.mean(logs[:, :rounds])
            differs |= np.abs(estimate.middle) > estimate.half(confidence if kind == "spent" else 0.95)
        rates[kind] = differs.mean()
    assert 0.03 < rates["spent"] <= MOST
    assert rates["naive"] > 0.1


# --- one comparison ------------------------------------------------------------------------------


def test_a_ratio_of_paired_runs_is_students_t_on_its_logarithm() -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = {1: 2.0, 2: 2.2, 3: 1.9}, {1: 1.0, 2: 1.3, 3: 1.1}
    found = ratio_interval(first, second)
    logs = [math.log(first[number] / second[number]) for number in first]
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(math.exp(np.mean(logs)))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_a_drift_that_rounds_share_does_not_widen_the_interval() -> None:
    first, second = {1: 2.0, 2: 4.1, 3: 8.0}, {1: 1.0, 2: 2.0, 3: 4.1}
    paired = ratio_interval(first, second)
    unpaired = ratio_interval(first, {-number: value for number, value in second.items()})
    assert paired.value == pytest.approx(unpaired.value)
    assert 1.0 not in paired
    assert 1.0 in unpaired


def drifting(rounds: int, apart: Sequence[float], ratio: float = 1.0) -> tuple[dict[int, float], ...]:
    """Figures of two cells in so many rounds, whose runs are so far apart: 2% from each run to the next."""
    numbers = range(1, rounds + 1)
    second = {number: 1.001**number for number in numbers}
    return {number: ratio * second[number] * 1.02 ** apart[number - 1] for number in numbers}, second


@pytest.mark.parametrize("rounds", [2, 3, 4, 5, 8])
def test_a_steady_drift_is_no_difference_in_balanced_rounds_and_a_line_takes_it_out(rounds: int) -> None:
    apart = [(1.0, -1.0, -1.0, 1.0)[number % 4] for number in range(rounds)]
    order = Order(dict(enumerate(apart, start=1)), 2)
    found = ratio_interval(*drifting(rounds, apart), order=order)
    assert found.low <= 1 + 1e-9
    assert found.high >= 1 - 1e-9
    if rounds >= 5:
        real = ratio_interval(*drifting(rounds, apart, 1.01), order=order)
        assert (real.low, real.value, real.high) == pytest.approx((1.01, 1.01, 1.01))


def test_rounds_that_are_not_balanced_have_a_line_or_no_interval() -> None:
    """One cell always first: that it runs later is all that differs. A late run, as of --resume, is far."""
    for rounds in (2, 3, 4, 5, 8):
        found = ratio_interval(*drifting(rounds, [1.0] * 8), order=Order(dict.fromkeys(range(1, 9), 1.0), 2))
        assert (found.is_known, found.why) == (False, ONE_ORDER)
    for late in ([1.0, 1.1, 0.9], [1.0, 1.2, 0.9, 1.1], [1.0, -1.0, 9.0], [1.0, -1.0, -1.0, 1.0, 90.0]):
        found = ratio_interval(*drifting(len(late), late), order=Order(dict(enumerate(late, start=1)), 2))
        assert found.low - 1e-9 < 1 < found.high + 1e-9


def test_rounds_whose_moments_are_not_known_are_compared_by_their_mean() -> None:
    figures = {1: 2.0, 2: 2.2, 3: 1.9}, {1: 1.0, 2: 1.3, 3: 1.1}
    for order in (Order({1: 0.0, 2: 0.0, 3: 0.0}, 2), Order({1: 5.0}, 2)):
        found, plain = ratio_interval(*figures, order=order), ratio_interval(*figures)
        assert dataclasses.astuple(found)[:4] == pytest.approx(dataclasses.astuple(plain)[:4])


def test_only_common_rounds_are_compared() -> None:
    assert ratio_interval({1: 2.0, 2: 2.0, 3: 100.0}, {1: 1.0, 2: 1.0, 4: 0.1}).value == pytest.approx(2.0)


@pytest.mark.parametrize(
    "found",
    [of_runs({1: 2.0}), ratio_interval({1: 2.0}, {1: 1.0}), ratio_interval({"a": 2.0}, {"b": 1.0, "c": 1.0})],
)
def test_one_run_a_cell_has_figures_and_no_interval(found: Interval) -> None:
    assert found.value == 2.0
    assert not found.is_known
    assert 1.0 in found
    assert found.text(units.ratio) == "2.00x (from one run each: no interval)"


def test_a_figure_of_zero_has_no_interval() -> None:
    assert not of_runs({1: 0.0, 2: 1.0}).is_known
    assert not ratio_interval({1: 0.0, 2: 1.0}, {1: 1.0, 2: 1.0}).is_known
    assert not ratio_interval({1: 1.0, 2: 1.0}, {1: 0.0, 2: 1.0}).is_known


def test_the_typical_figure_is_the_geometric_mean() -> None:
    assert typical([3.3]) == 3.3
    assert typical([1.0, 4.0]) == pytest.approx(2.0)


def test_looks_keep_what_they_have_in_common() -> None:
    looks = [Interval(1.0, 0.5, 1.5, 1.3), Interval(1.1, 0.8, 2.0, 1.2)]
    assert over_looks(looks) == Interval(1.1, 0.8, 1.5, 1.2)
    assert over_looks([Interval(1.0, 0.9, 1.1), Interval(2.0, 1.9, 2.1)]) == Interval(2.0, 1.9, 2.1)
