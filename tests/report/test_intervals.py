"""Intervals over runs: how often they find a difference where there is none, and what would show."""

import functools
import math
from typing import Any

import numpy as np
import pytest

from dpexp.report.intervals import (
    Interval,
    difference,
    mean,
    of_runs,
    ratio_interval,
)

Array = np.ndarray[Any, Any]
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


def found(estimate: tuple[Array, Array]) -> float:
    """The share of trials whose interval finds a difference although there is none."""
    middle, half = estimate
    return float(np.mean(np.abs(middle) > half))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("between", "within"), SPREADS)
@pytest.mark.parametrize("runs", RUNS)
def test_equal_cells_differ_in_at_most_6_percent_of_comparisons(
    runs: int, between: float, within: float, correlation: float
) -> None:
    first = run_medians(between, within, correlation, 1)[:, :runs]
    second = run_medians(between, within, correlation, 2)[:, :runs]
    drift = np.linspace(0, 1, runs)  # of the machine, which all cells of a round share
    assert found(mean((first + drift) - (second + drift))) <= MOST
    assert found(mean(first)) <= MOST  # a cell whose true figure is 1
    assert found(difference(first, second)) <= MOST
    assert found(difference(first, 10 * second)) <= MOST


def test_a_ratio_of_paired_runs_is_students_t_on_its_logarithm() -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = {1: 2.0, 2: 2.2, 3: 1.9}, {1: 1.0, 2: 1.3, 3: 1.1}
    ratio = ratio_interval(first, second)
    logs = [math.log(first[number] / second[number]) for number in first]
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert ratio.value == pytest.approx(math.exp(np.mean(logs)))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))


@pytest.mark.parametrize(
    "one",
    [of_runs({1: 2.0}), ratio_interval({1: 2.0}, {1: 1.0}), ratio_interval({"a": 2.0}, {"b": 1.0, "c": 1.0})],
)
def test_one_run_a_cell_has_figures_and_no_interval(one: Interval) -> None:
    assert one.value == 2.0
    assert not one.is_known
    assert 1.0 in one
    assert one.text("x") == "2.00x (from one run each: no interval)"


def test_a_figure_of_zero_has_no_interval() -> None:
    assert not of_runs({1: 0.0, 2: 1.0}).is_known
    assert not ratio_interval({1: 0.0, 2: 1.0}, {1: 1.0, 2: 1.0}).is_known
    assert not ratio_interval({1: 1.0, 2: 1.0}, {1: 0.0, 2: 1.0}).is_known
