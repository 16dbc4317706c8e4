"""Phase times: the stages of a hybrid step, and how near the step is to the longest of them."""

from __future__ import annotations

import pytest
from record_factory import hybrid, whole

from dpexp.record import Record
from dpexp.report.analysis import stages


def test_the_bound_of_a_hybrid_is_its_longest_stage_alone() -> None:
    found = hybrid(pipeline=True, sparse=True).summary["stages"]
    expected = {"lookup_ms": 0.3, "copy_ms": 0.02, "dense_ms": 1.0, "update_ms": 0.2, "bound_ms": 1.0}
    assert found == pytest.approx(expected | {"of_bound": 1.52}, rel=0.02)


def test_a_step_that_trains_nothing_has_no_update() -> None:
    phases = {"embedding": 0.5, "transfer": 0.1, "dense": 0.3, "loss": 0.1}
    found = hybrid(phases=phases).summary["stages"]
    assert found == pytest.approx(
        {"lookup_ms": 0.5, "copy_ms": 0.1, "dense_ms": 0.4, "bound_ms": 0.5, "of_bound": 2.0}, rel=0.02
    )


def test_only_a_hybrid_has_stages() -> None:
    for record in (whole(2), Record()):
        record.summarize()
        assert "stages" not in record.summary
        assert stages.lines(record) == []


def test_the_report_names_each_stage_and_the_longest() -> None:
    """30 rows of 10 numbers are looked up in 0.3 ms, and copied in 0.02 ms where the device is real."""
    (line,) = stages.lines(hybrid(virtual=False))
    assert line.startswith("alone: lookup 0.3 ms (4 MB/s), copy 20 µs (60 MB/s), dense 1 ms, update 0.2 ms; ")
    assert "times the longest (dense)" in line
    (emulated,) = stages.lines(hybrid())
    assert "copy 20 µs, dense" in emulated
