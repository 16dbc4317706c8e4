"""Step times and phases: quartiles against those computed by hand, and which steps count."""

import math
import random

import pytest
from record_factory import time_phases, whole

from dpexp.record.figures import summarize
from dpexp.record.steps import quartiles, spread


def by_hand(samples: list[float], share: float) -> float:
    """The value that this share of the way from the smallest to the largest sample stands at."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 21])
def test_quartiles_are_those_of_the_samples_themselves(count: int) -> None:
    samples = [random.Random(count).random() for _ in range(count)]
    low, middle, high = expected = [by_hand(samples, share) for share in (0.25, 0.5, 0.75)]
    assert quartiles(samples) == pytest.approx(expected, rel=1e-12)
    ends = {"min": min(samples), "max": max(samples), "n": count}
    assert spread(samples) == pytest.approx({"median": middle, "iqr": high - low, **ends}, rel=1e-9)


def test_quartiles_of_one_to_five_are_two_three_and_four() -> None:
    """Exclusive ones, which estimate those of a population, would be 1.5 and 4.5."""
    assert quartiles([5, 1, 4, 2, 3]) == (2, 3, 4)
    assert spread([]) is None


def test_phases_are_of_the_full_batches() -> None:
    """The fourth and the eighth step have 10 rows; the median of 1, 2, 3, 5, 6, 7 times 0.1 ms is 0.4 ms."""
    record = whole(2)
    phases = {name: times[0] for name, times in record.phases.items()}
    record.timeline, record.phases = [], {}
    time_phases(record, phases, [], 0.0, steps=8)
    record.phases["replicate"] = [0.1 * (1 + number) for number in range(8)]
    assert summarize(record)["phases_ms"]["replicate"] == pytest.approx(0.4)
