"""Steps: quartiles and intervals against known ones, which steps count, and which cannot be judged."""

import random

import pytest
from helpers.record_factory import PHASES, time_phases, whole

from dpexp import report
from dpexp.record.figures import summarize
from dpexp.record.steps import median_interval, noise, quartiles, spread
from dpexp.record.view import RecordView
from dpexp.report.findings import findings_of

WIDE = [0.5, 4.0, 1.0, 9.0] * 20
MIXED = [1.0] * 40 + [1.5] * 40 + [40.0] * 5
INTERRUPTED = [1.0, 1.01, 0.99, 1.02] * 15 + [40.0] * 4 + [1.0] * 16


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


def test_a_run_cannot_be_judged_where_its_times_are_spread_and_its_median_is_uncertain() -> None:
    assert [noise(times) is None for times in (WIDE, MIXED)] == [False, False]
    for judged in (
        INTERRUPTED,
        [1.0, 1.5, 2.0, 2.5] * 10,
        [1.0] * 80 + [70.0],  # which holds less than half
        [1.0, 100.0, 1.0],  # too few to say
    ):
        assert noise(judged) is None


def test_the_interval_of_the_median_covers_it_in_95_of_100_samples() -> None:
    rng, covered = random.Random(20), 0
    for _ in range(2000):
        low, high = median_interval([rng.paretovariate(1.0) for _ in range(20)])
        covered += low <= 2.0 <= high
    assert covered / 2000 > 0.94


def test_a_noisy_run_is_said_to_be_one_first_and_nothing_is_built_on_it() -> None:
    record = whole(2, phases=PHASES | {"replicate": 1.0}, replica_share=0.1)
    record.steps = {"time_ms": WIDE, "loss": [1.0] * len(WIDE), "samples": [30] * len(WIDE)}
    record.steps["wall_ms"] = [ms + 0.5 for ms in WIDE]
    summarize(record)
    why = "the median of 80 steps lies between 1 ms and 4 ms"
    rate = 1000 * 30 * len(WIDE) / sum(record.steps["wall_ms"])
    text = report.summary(record, width=300, full=True)
    verdict = text.splitlines()[1]
    assert verdict.startswith(f"  VIRTUAL devices, verified; cannot be judged: {why}; ")
    assert verdict.endswith(f"; {rate:,.0f} samples/s by wall clock")
    (found,) = findings_of(RecordView(record)).items()
    assert (found[0], why in found[1]) == ("cannot be judged", True)
    section = text.partition("Where a step goes\n")[2].partition("\n\n")[0]
    assert "without shares" in section
    assert "%" not in section
