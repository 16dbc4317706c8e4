"""Noise: which times cannot be judged, and what screens say of them."""

import random

import pytest
from helpers.record_factory import PHASES, whole

from dpexp import report
from dpexp.record.figures import summarize
from dpexp.record.noise import median_interval, noise
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report.findings import findings_of


def timed(times: list[float], **changes: object) -> Record:
    """A run of whole on two devices with these times of its steps in ms, and much overhead."""
    record = whole(2, phases=PHASES | {"replicate": 1.0}, replica_share=0.1, **changes)
    wall_ms = [ms + 0.5 for ms in times]
    record.steps = {"time_ms": times, "loss": [1.0] * len(times), "samples": [30] * len(times)}
    record.steps["wall_ms"] = wall_ms
    summarize(record)
    return record


WIDE = [0.5, 4.0, 1.0, 9.0] * 20
MIXED = [1.0] * 40 + [1.5] * 40 + [40.0] * 5
HELD = [1.0, 1.01, 0.99, 1.02] * 15 + [40.0] * 4 + [1.0] * 16


def test_a_run_can_be_judged_where_its_median_is_certain() -> None:
    assert noise([1.0, 1.5, 2.0, 2.5] * 10) is None
    wide, mixed, held = noise(WIDE), noise(MIXED), noise(HELD)
    assert wide is not None
    assert mixed is not None
    assert held is not None
    assert (wide.is_certain, wide.are_interrupted) == (False, False)
    assert (mixed.is_certain, mixed.are_interrupted, mixed.outliers) == (False, True, 5)
    assert (held.is_certain, held.are_interrupted, held.outliers) == (True, True, 4)
    assert held.share == pytest.approx(160 / sum(HELD))
    assert noise([1.0] * 80 + [70.0]) is None  # it holds less than half
    assert noise([1.0, 100.0, 1.0]) is None  # too few to say


@pytest.mark.parametrize("count", [8, 20, 75, 400])
def test_the_interval_of_the_median_covers_it_in_95_of_100_samples(count: int) -> None:
    rng = random.Random(count)
    covered = 0
    for _ in range(2000):
        low, high = median_interval([rng.paretovariate(1.0) for _ in range(count)])
        covered += low <= 2.0 <= high
    assert covered / 2000 > 0.94


def test_a_run_with_a_few_interruptions_is_judged_and_they_are_named() -> None:
    record = timed(HELD)
    verdict = report.summary(record, width=300, full=True).splitlines()[1]
    assert "per step, IQR 10 µs, n 80; interrupted: 4 of 80 steps hold 68% of the time" in verdict
    assert RecordView(record).noise is None
    assert "cannot be judged" not in findings_of(RecordView(record))


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (WIDE, "the median of 80 steps lies between 1 ms and 4 ms"),
        (
            MIXED,
            "the median of 85 steps lies between 1 ms and 1.5 ms, 5 of them hold 67% of the time",
        ),
    ],
)
def test_a_noisy_run_is_said_to_be_one_first_and_nothing_is_built_on_it(times: list[float], why: str) -> None:
    record = timed(times)
    rate = 1000 * 30 * len(times) / sum(ms + 0.5 for ms in times)
    text = report.summary(record, width=300, full=True)
    verdict = text.splitlines()[1]
    assert verdict.startswith(f"  VIRTUAL devices, verified; cannot be judged: {why}; ")
    assert verdict.endswith(f"; {rate:,.0f} samples/s by wall clock")
    (found,) = findings_of(RecordView(record)).items()
    assert (found[0], why in found[1]) == ("cannot be judged", True)
    section = text.partition("Where a step goes\n")[2].partition("\n\n")[0]
    assert "without shares" in section
    assert "%" not in section
    assert "[IQR" in section
    assert "% of" not in report.note(record).partition("Where a step goes")[2].partition("###")[0]


def test_the_rate_by_wall_clock_is_that_of_all_rows() -> None:
    record = whole(2)
    rows, wall_s = sum(record.steps["samples"]), sum(record.steps["wall_ms"]) / 1000
    assert record.summary["wall_samples_per_s"] == pytest.approx(rows / wall_s)
    record.steps["wall_ms"][3] = None  # of a run that an earlier version began
    assert RecordView(record).wall_samples_per_s is None
    del record.steps["wall_ms"]  # of an earlier version
    assert RecordView(record).wall_samples_per_s is None
    assert "by wall clock" not in report.summary(record)
