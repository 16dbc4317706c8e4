"""Step times: the spread of samples, against quartiles that are computed by hand."""

import math
import random

import pytest

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
    expected = [by_hand(samples, share) for share in (0.25, 0.5, 0.75)]
    assert quartiles(samples) == pytest.approx(expected, rel=1e-12)
    assert spread(samples) == pytest.approx(
        {
            "median": expected[1],
            "iqr": expected[2] - expected[0],
            "min": min(samples),
            "max": max(samples),
            "n": count,
        },
        rel=1e-9,
    )


def test_quartiles_of_one_to_five_are_two_three_and_four() -> None:
    """Exclusive ones, which estimate those of a population, would be 1.5 and 4.5."""
    assert quartiles([5, 1, 4, 2, 3]) == (2, 3, 4)
    assert spread([]) is None
