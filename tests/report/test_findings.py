"""Every finding on a Record that must raise it and on a Record that must not."""

import itertools
import math
import random
from typing import Any

import pytest
from helpers.command_lines import ROOT
from helpers.record_factory import PHASES, hybrid, shape_row, timeline_row, whole

from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.report.findings import FINDINGS, findings_of

BUSY = PHASES | {"scatter": 0.5, "replicate": 0.5, "parallel_apply": 20.0, "gather": 0.5, "backward": 40.0}
"""Phases of a step that keeps its devices busy, so that nothing is found."""
COPYING = PHASES | {"scatter": 0.3, "replicate": 1.0, "gather": 0.3}


def texts(record: Record) -> dict[str, str]:
    """{name of the finding: what it says and advises}"""
    return {found.name: f"{found.text} {found.advice}" for found in findings_of(record)}


def timed(times: list[float], sizes: tuple[int, ...] = (30,), **changes: Any) -> Record:
    """A busy run of whole on two devices with these step times in ms."""
    record = whole(2, phases=BUSY, **changes)
    rows = list(itertools.islice(itertools.cycle(sizes), len(times)))
    record.steps = {"time_ms": times, "loss": [1.0] * len(times), "samples": rows}
    summarize(record)
    return record


def noisy(count: int, seed: int) -> list[float]:
    """Steady step times."""
    rng = random.Random(seed)
    return [math.exp(0.05 * rng.gauss()) for _ in range(count)]


def test_a_busy_balanced_steady_run_has_no_findings() -> None:
    for record in (
        Record(),
        whole(2, phases=BUSY),
        whole(3, virtual=False, phases=BUSY),
        hybrid(sparse=True),
    ):
        assert not findings_of(record)


def test_every_finding_is_documented_in_the_order_of_reports() -> None:
    page = (ROOT / "docs" / "layouts.md").read_text()
    table = page[page.index("| finding | raised when | try |") :].split("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [*FINDINGS]
    record = whole(8, phases=COPYING, replica_share=0.1, execution="passthrough")
    raised = [found.name for found in findings_of(record)]
    assert len(raised) == 4
    assert raised == sorted(raised, key=[*FINDINGS].index)


def test_a_wrapper_that_passed_through_is_found() -> None:
    assert "--virtual" in texts(whole(1, execution="passthrough"))["no device to split over"]


def test_a_run_that_ends_within_a_window_of_accumulation_is_found() -> None:
    for sizes, said in (
        ((30,), "(--accumulate). End"),
        ((30, 10), "one of 10 rows counts as much as one of 30"),
    ):
        record = timed([1.0] * 10, sizes)
        record.config["accumulate"] = 4
        found = texts(record)["gradients never applied"]
        assert "The last 2 batches of 10 trained nothing" in found
        assert said in found
        assert "--steps 8 or 12" in found
    record.config["accumulate"] = 5
    assert "gradients never applied" not in texts(record)


def test_batches_that_leave_devices_idle_are_found() -> None:
    found = texts(whole(8))["idle devices"]
    assert found.startswith("The last batch of an epoch (10 rows) runs on 5 of 8 devices: 3 idle")
    assert " 15 rows would use all 8" in found
    found = texts(whole(8, batches=(6,)))["idle devices"]
    assert found.startswith("Every batch (6 rows) runs on 6 of 8 devices: 2 idle")
    for record in (whole(2), whole(8, batches=(32, 32, 16)), hybrid()):
        assert "idle devices" not in texts(record)


# --- overheads -----------------------------------------------------------------------------------


def test_replicate_that_takes_much_of_a_step_is_found() -> None:
    found = texts(whole(8, phases=PHASES | {"replicate": 1.0}))["copying parameters"]
    assert "takes 34% of a step (1 ms): every forward copies 336 B of parameters and buffers to 7" in found
    assert "copying parameters" not in texts(whole(8, phases=BUSY))


def test_short_replicas_in_a_long_forward_are_overhead() -> None:
    found = texts(whole(2, phases=COPYING, replica_share=0.1))["mostly overhead"]
    assert "compute during 0.1 ms of the forward's 2.6 ms" in found
    assert "gather take 1.6 ms, and in the other 0.9 ms threads" in found
    assert "mostly overhead" not in texts(whole(2, phases=BUSY, replica_share=0.4)), "they compute for long"


def test_replicas_that_compute_one_after_the_other_are_not_overhead() -> None:
    record = whole(4)
    for row in record.timeline:
        if row["replica"] is not None:
            quarter = (row["end_us"] - row["start_us"]) / 4
            row["start_us"] += quarter * row["replica"]
            row["end_us"] = row["start_us"] + quarter
    assert "mostly overhead" not in texts(record)


# --- ranks ---------------------------------------------------------------------------------------


def ddp_run(compute_ms: list[float], allreduce_ms: float = 1.0, overlap_ms: float = 1.0) -> Record:
    """A run with a rank for each compute time, and an all-reduce of which a part overlaps."""
    record, most = whole(len(compute_ms)), max(compute_ms)
    record.devices["ranks"] = [
        {"rank": rank, "host": f"host{rank // 2}", "device": f"cpu:{rank}"} for rank in range(len(compute_ms))
    ]
    record.shapes = [shape_row(0, "", [[30, 5]], [[30, 2]], "cpu:0", 0)] * len(compute_ms)
    phases = {"forward": most, "allreduce": allreduce_ms, "overlap": overlap_ms}
    record.timeline, record.phases = [], {name: [ms] * 3 for name, ms in phases.items()}
    for step, start in enumerate((0.0, 1e5, 2e5)):
        for name, ms in {"step": most + allreduce_ms, **phases}.items():
            record.timeline.append(timeline_row(step, name, None, "cpu:0", start, start + 1e3 * ms))
        for rank, ms in enumerate(compute_ms):
            spans = {
                "forward": (start, start + 500 * ms),
                "backward_compute": (start + 5e4, start + 5e4 + 500 * ms),
            }
            for name, span in spans.items():
                record.timeline.append(timeline_row(step, name, rank, f"cpu:{rank}", *span))
    summarize(record)
    return record


def test_an_exposed_allreduce_is_found() -> None:
    name = "all-reduce that nothing overlaps"
    assert "5 ms of a step (31%)" in texts(ddp_run([10.0, 10.0], allreduce_ms=6.0))[name]
    assert name not in texts(ddp_run([10.0, 10.0], allreduce_ms=6.0, overlap_ms=5.5))


# --- steadiness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("slow", [2, 8])
def test_slow_first_steps_are_found_and_need_a_longer_warmup(slow: int, count: int) -> None:
    for factor in (1.8, 50.0):
        times = noisy(count, seed=slow)
        found = texts(timed([factor * ms for ms in times[:slow]] + times[slow:]))["unsteady steps"]
        assert found.startswith(f"The first {slow} steps take ")
        assert found.endswith(f"--warmup {max(20, 10 + 4 * slow)}.")
