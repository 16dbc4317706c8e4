"""Phase times: the stages of a hybrid step, and how near the step is to the longest of them."""

import pytest
from record_factory import hybrid, whole

from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record
from dpexp.record.view import RecordView
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
        summarize(record)
        assert "stages" not in record.summary
        assert stages.stage_lines(RecordView(record)) == []


def test_the_report_names_each_stage_and_the_longest() -> None:
    """30 rows of 10 numbers are looked up in 0.3 ms, and copied in 0.02 ms where the device is real."""
    (line,) = stages.stage_lines(RecordView(hybrid(virtual=False)))
    assert line.startswith(
        "alone: lookup 0.3 ms (4 MB/s), copy 20 µs (60 MB/s), dense + loss + backward 1 ms, "
    )
    assert "update 0.2 ms; " in line
    assert "times the longest (dense + loss + backward)" in line
    (emulated,) = stages.stage_lines(RecordView(hybrid()))
    assert "copy 20 µs, dense" in emulated


def test_tables_that_share_exchanges_ahead_may_bring_a_step_below_the_bound() -> None:
    limit, shared = "overlap cannot bring it below 1", "all tables share the exchanges"
    for pipeline, shard_embedding in ((True, False), (False, True), (True, True)):
        record = hybrid(pipeline=pipeline)
        record.config["shard_embedding"] = shard_embedding
        (line,) = stages.stage_lines(RecordView(record))
        is_shared = pipeline and shard_embedding
        assert (limit in line, shared in line) == (not is_shared, is_shared)


RATES = {"median": 8e6, "iqr": 1e6, "min": 7e6, "max": 1e7, "n": 5}


def test_the_report_says_how_near_each_stage_is_to_what_the_machine_gives() -> None:
    """1200 bytes are looked up in 0.3 ms, 4 MB/s of 10; the dense part computes 2 GFLOP/s of 8."""
    record = hybrid(virtual=False)
    peak = {"devices": 1, "flops_per_s": {**RATES, "max": 8e9}}
    record.work = {"rows": 30, "flops": {"forward": 500_000, "backward": 1_500_000}, "peak": peak}
    record.work |= {"memory": {"bytes": 1200, "row_bytes": 40, "bytes_per_s": RATES}}
    record.work |= {"link": {"bytes": 160, "bytes_per_s": RATES}}
    summarize(record)
    shares = {name: record.summary["stages"][f"{name}_share"] for name in ("lookup", "copy", "dense")}
    assert shares == pytest.approx({"lookup": 0.4, "copy": 0.8, "dense": 0.25}, rel=0.02)
    (line,) = stages.stage_lines(RecordView(record))
    assert "lookup 0.3 ms (40% of what memory gives, 10 MB/s), copy 20 µs (80% of what the link" in line
    assert "dense + loss + backward 1 ms (25% of what the device gives, 8 GFLOP/s), update 0.2 ms; " in line


def test_rows_that_come_faster_than_from_memory_come_from_caches() -> None:
    record = hybrid()
    record.work = {"rows": 30, "memory": {"bytes": 6000, "row_bytes": 40, "bytes_per_s": RATES}}
    summarize(record)
    (line,) = stages.stage_lines(RecordView(record))
    assert "lookup 0.3 ms (more than the 10 MB/s of the probe: caches have the rows, or it was " in line


def test_shares_are_those_of_a_step_of_as_many_rows() -> None:
    record = hybrid()
    record.work = {"rows": 10, "memory": {"bytes": 400, "row_bytes": 40, "bytes_per_s": RATES}}
    summarize(record)
    assert "lookup_share" not in record.summary["stages"]
