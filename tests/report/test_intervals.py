"""Intervals over runs: how often they find a difference where there is none, and how wide they are."""

import functools
import itertools
import math
import re
import statistics
from typing import Any

import numpy as np
import pytest
from command_lines import ROOT

from dpexp.report import intervals, units
from dpexp.report.intervals import (
    CONFIDENCE,
    Estimate,
    Interval,
    against_one,
    least_found,
    of_runs,
    ratio_interval,
    typical,
)

Array = np.ndarray[Any, Any]
PAGE = ROOT / "docs" / "definitions.md"
TRIALS, STEPS = 5000, 24
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


def found(estimate: Estimate) -> float:
    """The share of trials whose interval finds a difference although there is none."""
    return float(np.mean(np.abs(estimate.middle) > estimate.half(CONFIDENCE)))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("between", "within"), SPREADS)
@pytest.mark.parametrize("runs", RUNS)
def test_equal_cells_differ_in_at_most_6_percent_of_comparisons(
    runs: int, between: float, within: float, correlation: float
) -> None:
    first = run_medians(between, within, correlation, 1)[:, :runs]
    second = run_medians(between, within, correlation, 2)[:, :runs]
    drift = np.linspace(0, 1, runs)  # of the machine, which all cells of a round share
    assert found(intervals.mean((first + drift) - (second + drift))) <= MOST
    assert found(intervals.mean(first)) <= MOST  # a cell whose true figure is 1
    assert found(intervals.difference(first, second)) <= MOST
    assert found(intervals.difference(first, 10 * second)) <= MOST


@pytest.mark.parametrize(
    ("runs", "others"), [pair for pair in itertools.product(RUNS, RUNS) if pair[0] < pair[1]]
)
def test_cells_of_unequal_numbers_of_runs_are_no_exception(runs: int, others: int) -> None:
    for factor in (0.1, 0.3, 1.0, 3.0):
        first = run_medians(0.3, 0.1, 0.0, 1)[:, :runs]
        second = factor * run_medians(0.3, 0.1, 0.0, 2)[:, :others]
        assert found(intervals.difference(first, second)) <= MOST


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
        of_rounds = intervals.mean(first - second)
        assert 100 * found(of_rounds) == pytest.approx(float(rate), abs=0.1)
        for estimate, width in zip((of_rounds, intervals.difference(first, second)), widths, strict=True):
            half = np.median(estimate.half(CONFIDENCE))
            assert 100 * (np.exp(half) - 1) == pytest.approx(float(width), rel=0.02)
        seen = least_found(int(of_rounds.freedom), CONFIDENCE) * np.median(of_rounds.error)
        assert 100 * (np.exp(seen) - 1) == pytest.approx(float(shown), rel=0.02)


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
