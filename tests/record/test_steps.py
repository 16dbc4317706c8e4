"""Step times and phases: quartiles against those computed by hand, and which steps count."""

import pytest
from helpers.record_factory import time_phases, whole

from dpexp.record.figures import summarize
from dpexp.record.steps import quartiles, spread


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
