"""Every finding on a Record that must raise it and on a Record that must not."""

import dataclasses
import itertools
import math
import random
import re
from typing import Any

import pytest
from command_lines import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from record_factory import EPOCH, PHASES, hybrid, measure, whole

from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.report.findings import Finding, apply_rules, rules

BUSY = PHASES | {"scatter": 0.5, "replicate": 0.5, "parallel_apply": 20.0, "gather": 0.5, "backward": 40.0}
"""Phases of a step that keeps its devices busy, so that no rule finds anything."""


def names(record: Record) -> set[str]:
    return set(apply_rules(record))


def finding(record: Record, name: str) -> Finding:
    return apply_rules(record)[name]


def timed(times: list[float], sizes: tuple[int, ...] = (30,), **changes: Any) -> Record:
    """A busy run of whole on two devices with these step times in ms."""
    record = whole(2, phases=BUSY, **changes)
    rows = list(itertools.islice(itertools.cycle(sizes), len(times)))
    record.steps = {"time_ms": times, "loss": [1.0] * len(times), "samples": rows}
    summarize(record)
    return record


def by_rows(per_row: float, fixed: float, sizes: tuple[int, ...] = EPOCH, steps: int = 100) -> list[float]:
    """Step times in ms that grow with the rows of the batch, within 1%."""
    wobble = itertools.cycle((0.995, 1.0, 1.005))
    return [
        (fixed + per_row * rows) * next(wobble) for rows in itertools.islice(itertools.cycle(sizes), steps)
    ]


def test_a_busy_balanced_steady_run_has_no_findings() -> None:
    assert not apply_rules(whole(2, phases=BUSY))
    assert not apply_rules(hybrid(sparse=True))


def test_an_empty_record_has_no_findings() -> None:
    assert not apply_rules(Record())


# --- imbalance -----------------------------------------------------------------------------------


def test_a_wrapper_that_passed_through_is_found() -> None:
    assert "--virtual" in finding(whole(1, execution="passthrough"), "passed_through").advice
    assert "passed_through" not in names(whole(2))


def test_a_last_batch_that_leaves_devices_idle_is_found() -> None:
    found = finding(whole(8), "idle_devices")
    assert found.figures == {"rows": 10, "idle": 3, "devices": 8}
    assert found.text.startswith("The last batch of an epoch (10 rows) runs on 5 of 8 devices: 3 idle")
    assert found.advice.startswith("15 rows would use all 8")


def test_batches_that_use_all_devices_are_not_found() -> None:
    assert "idle_devices" not in names(whole(2))
    assert "idle_devices" not in names(whole(8, batches=(32, 32, 16)))
    assert "idle_devices" not in names(hybrid())


def test_batches_with_fewer_rows_than_devices_are_found() -> None:
    found = finding(whole(8, batches=(6,)), "idle_devices")
    assert found.text.startswith("Every batch (6 rows) runs on 6 of 8 devices: 2 idle")


def test_high_memory_of_the_output_device_is_found() -> None:
    memory = {"cpu": 10**9, "cuda:0": 3 * 10**9, "cuda:1": 10**9, "cuda:2": 10**9}
    found = finding(whole(3, virtual=False, memory=memory), "output_memory")
    assert "cuda:0 peaks at 3 GB" in found.text
    assert found.figures == {"output_bytes": 3e9, "other_bytes": 1e9}


def test_balanced_memory_and_host_memory_are_not_found() -> None:
    assert "output_memory" not in names(whole(3, virtual=False))
    assert "output_memory" not in names(whole(3, memory={"cpu": 10**9}))


# --- overheads -----------------------------------------------------------------------------------


def test_replicate_that_takes_much_of_a_step_is_found() -> None:
    found = finding(whole(8, phases=PHASES | {"replicate": 1.0}), "replicate")
    assert found.figures["bytes"] == 7 * 48
    assert found.figures["share"] == pytest.approx(1.0 / 2.9)
    assert "336 B" in found.text
    assert "7 devices" in found.text


def test_replicate_that_takes_little_is_not_found() -> None:
    assert "replicate" not in names(whole(8, phases=BUSY))


def test_replicate_names_the_rows_at_which_it_falls_under_a_tenth() -> None:
    record = whole(2, phases=PHASES | {"replicate": 1.0})
    times = by_rows(per_row=0.05, fixed=1.0)
    record.steps = {"time_ms": times, "loss": [1.0] * 100, "samples": (list(EPOCH) * 25)}
    found = finding(record, "replicate")
    assert found.figures["rows"] == pytest.approx(180, rel=0.05)  # 1.0 + 0.05 rows = 10 ms
    assert "rows a batch" in found.advice


def test_replicate_names_no_rows_where_step_time_is_flat_or_fewer_replicas_ran() -> None:
    flat = whole(2, phases=PHASES | {"replicate": 1.0})
    flat.steps = {"time_ms": by_rows(0.0, 1.0), "loss": [1.0] * 100, "samples": (list(EPOCH) * 25)}
    assert "rows" not in finding(flat, "replicate").figures
    fewer = whole(8, phases=PHASES | {"replicate": 1.0})
    fewer.steps = {"time_ms": by_rows(0.05, 1.0), "loss": [1.0] * 100, "samples": (list(EPOCH) * 25)}
    assert "rows" not in finding(fewer, "replicate").figures


def test_threads_that_take_longer_than_the_replicas_are_overhead() -> None:
    found = finding(whole(2, phases=COPYING, replica_share=0.1), "overhead")
    assert found.figures == pytest.approx({"computing_ms": 0.1, "around_ms": 1.8, "copies_ms": 0.9})


COPYING = PHASES | {"scatter": 0.3, "replicate": 0.3, "gather": 0.3}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 30.0), min_size=4, max_size=4), st.floats(0.01, 1.0))
def test_a_finding_that_names_a_cause_accounts_for_half_of_what_it_explains(
    times: list[float], share: float
) -> None:
    """Else it says that the rest has no known cause, and how to see it."""
    phases = dict(zip(("scatter", "replicate", "parallel_apply", "gather"), times, strict=True))
    found = apply_rules(whole(2, phases=PHASES | phases, replica_share=share))
    assert not {"overhead", "unknown_time"} <= set(found)
    if cause := found.get("overhead"):
        assert cause.figures["copies_ms"] >= 0.5 * cause.figures["around_ms"]
    if unknown := found.get("unknown_time"):
        assert unknown.figures["copies_ms"] < 0.5 * unknown.figures["around_ms"]
        assert "has no known cause" in unknown.text
        assert "--profile" in unknown.advice


def test_the_forward_around_a_block_is_explained_by_its_copies_only_where_they_are_half_of_it() -> None:
    """As ``block`` has it: 0.6 of 25 ms are in the block's phases, the other 24.4 ms elsewhere."""
    record = whole(2, phases={"parallel_apply": 0.3, "scatter": 0.1, "replicate": 0.1, "gather": 0.1})
    for row in [row for row in record.timeline if row["phase"] == "step"]:
        row["end_us"] = row["start_us"] + 26_000
        record.timeline.append(row | {"phase": "forward", "end_us": row["start_us"] + 25_000})
        record.phases.setdefault("forward", []).append(25.0)
    summarize(record)
    found = apply_rules(record)
    assert "overhead" not in found
    assert found["unknown_time"].text.startswith("Most of the forward's 25 ms has no known cause: ")
    assert "--profile what fills them" in found["unknown_time"].advice
    record.work["operators"] = {"trace": {"bytes": 1, "sha256": "ab"}}
    assert "profiler_trace.json what fills them" in apply_rules(record)["unknown_time"].advice


def test_sequential_replicas_are_not_overhead() -> None:
    record = whole(4)
    for row in record.timeline:
        if row["replica"] is not None:
            quarter = (row["end_us"] - row["start_us"]) / 4
            row["start_us"] += quarter * row["replica"]
            row["end_us"] = row["start_us"] + quarter
    assert "overhead" not in names(record)


def test_long_replicas_are_not_dominated_by_python() -> None:
    assert "overhead" not in names(whole(2, phases=BUSY, replica_share=0.4))


def test_a_step_that_does_not_grow_with_its_rows_is_overhead() -> None:
    record = hybrid()
    record.steps = {"time_ms": by_rows(0.001, 1.0), "loss": [1.0] * 100, "samples": list(EPOCH) * 25}
    assert finding(record, "overhead").figures["fixed_share"] == pytest.approx(0.97, abs=0.02)


def test_a_step_that_grows_with_its_rows_is_not_overhead() -> None:
    record = hybrid()
    record.steps = {"time_ms": by_rows(0.05, 0.1), "loss": [1.0] * 100, "samples": list(EPOCH) * 25}
    assert "overhead" not in names(record)


LARGE_TABLE = {
    "embedding": 0.3,
    "transfer": 0.02,
    "dense": 0.4,
    "loss": 0.1,
    "backward": 40.0,
    "optimizer": 40.0,
}


def test_a_large_tables_dense_gradient_is_found() -> None:
    found = finding(hybrid(rows=1_000_000, dim=64, ids=16, phases=LARGE_TABLE), "dense_gradient")
    assert "--sparse" in found.advice
    assert found.figures["bytes"] == 256e6
    assert found.figures["touched"] == 480


def test_a_sparse_gradient_and_a_small_table_are_not_found() -> None:
    large = {"rows": 1_000_000, "dim": 64, "phases": LARGE_TABLE}
    assert "dense_gradient" not in names(hybrid(sparse=True, **large))
    assert "dense_gradient" not in names(hybrid(phases=LARGE_TABLE))
    assert "dense_gradient" not in names(whole(2))


# --- reliability ---------------------------------------------------------------------------------


def test_noisy_steps_are_found() -> None:
    found = finding(timed([1.0, 1.5, 2.0, 2.5] * 10), "noise")
    assert found.figures["iqr_share"] > 0.2
    assert "40 steps" in found.text


def test_two_batch_sizes_are_not_noise() -> None:
    assert "noise" not in names(timed(by_rows(0.1, 0.1), EPOCH))


def test_a_few_steps_are_not_enough_for_noise() -> None:
    assert "noise" not in names(timed([1.0, 5.0]))


STEADY = ("unsteady_start", "change_point", "drift", "outliers")


def noisy(count: int, seed: int, spread: float = 0.05, correlation: float = 0.0) -> list[float]:
    """Steady step times with this relative spread; a step depends on the one before it."""
    rng = random.Random(seed)
    value, times = rng.gauss(), []
    for _ in range(count):
        value = correlation * value + math.sqrt(1 - correlation**2) * rng.gauss()
        times.append(math.exp(spread * value))
    return times


@pytest.mark.parametrize("spread", [0.02, 0.1])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("count", [20, 75, 300])
def test_steady_runs_have_no_finding_about_steadiness(count: int, correlation: float, spread: float) -> None:
    runs = [noisy(count, seed, spread, correlation) for seed in range(40)]
    found = [names(timed(times)).intersection(STEADY) for times in runs]
    assert sum(map(bool, found)) <= 2


@pytest.mark.parametrize("count", [40, 75, 300, 1000])
@pytest.mark.parametrize("slow", [2, 4, 8])
def test_slow_first_steps_are_found(slow: int, count: int) -> None:
    for factor in (1.8, 50.0):
        times = noisy(count, seed=slow)
        found = apply_rules(timed([factor * ms for ms in times[:slow]] + times[slow:]))
        assert set(found).intersection(STEADY) == {"unsteady_start"}
        assert found["unsteady_start"].figures["steps"] == slow
        assert found["unsteady_start"].figures["ratio"] == pytest.approx(factor, rel=0.2)


def test_the_advice_after_slow_first_steps_is_a_longer_warmup() -> None:
    found = finding(timed([3.0] * 5 + [1.0, 1.01] * 40), "unsteady_start")
    assert found.advice == "Warm up longer: --warmup 30."


@pytest.mark.parametrize("count", [75, 300, 1000])
@pytest.mark.parametrize("factor", [0.2, 1.4, 5.0])
def test_steps_that_change_at_once_are_found_where_they_change(factor: float, count: int) -> None:
    """The last sixth of a run, for example on a machine that got hot or has other work."""
    last = count // 6
    times = noisy(count, seed=count)
    found = apply_rules(timed(times[:-last] + [factor * ms for ms in times[-last:]]))
    assert set(found).intersection(STEADY) == {"change_point"}
    assert found["change_point"].figures["ratio"] == pytest.approx(factor, rel=0.1)
    assert found["change_point"].figures["at"] == pytest.approx(count - last, abs=2 + count / 50)
    assert ("began" in found["change_point"].advice) == (factor > 1)


@pytest.mark.parametrize("count", [60, 300, 1000])
@pytest.mark.parametrize("growth", [-0.4, 0.5, 2.0])
def test_steps_that_change_gradually_drift(growth: float, count: int) -> None:
    times = [ms * (1 + growth * number / count) for number, ms in enumerate(noisy(count, seed=count))]
    found = apply_rules(timed(times))
    assert set(found).intersection(STEADY) == {"drift"}
    assert found["drift"].figures["ratio"] == pytest.approx(1 + growth, rel=0.15)


def test_a_change_or_drift_of_a_tenth_is_not_reported() -> None:
    times = noisy(300, seed=1, spread=0.02)
    assert not names(timed(times[:150] + [1.1 * ms for ms in times[150:]])).intersection(STEADY)
    drifting = [ms * (1 + 0.1 * number / 300) for number, ms in enumerate(times)]
    assert not names(timed(drifting)).intersection(STEADY)


def test_single_slow_steps_that_cost_much_are_outliers() -> None:
    times = noisy(100, seed=2)
    for number in (17, 45, 80):
        times[number] *= 10
    found = apply_rules(timed(times))
    assert set(found).intersection(STEADY) == {"outliers"}
    assert found["outliers"].figures == {"steps": 3, "share": pytest.approx(27 / 127, rel=0.1)}
    assert "number 17, 45, 80" in found["outliers"].text
    assert not names(timed([*times[:17], *times[46:80]])).intersection(STEADY)
    assert not names(timed(noisy(97, seed=2) + [2.5] * 1 + noisy(2, seed=3))).intersection(STEADY)


def test_gaps_between_phases_are_found() -> None:
    record = whole(2, phases=BUSY)
    for row in record.timeline:
        if row["phase"] == "backward":
            row["end_us"] -= 20_000
    summarize(record)
    found = finding(record, "phase_sum")
    assert found.figures["coverage"] == pytest.approx(1 - 20 / sum(BUSY.values()))


def test_a_phase_pass_slower_than_the_steps_is_found() -> None:
    record = whole(2, phases=BUSY)
    record.timeline = [
        row | {"step": row["step"] + 3 * repeat} for repeat in range(4) for row in record.timeline
    ]
    measure(record, sum(BUSY.values()) / 2, 100, (30,))
    summarize(record)
    assert finding(record, "phase_sum").figures["ratio"] == pytest.approx(2.0, rel=0.05)


def test_phases_that_cover_the_step_are_not_found() -> None:
    assert "phase_sum" not in names(whole(2, phases=BUSY))


# --- all rules -----------------------------------------------------------------------------------


def test_every_finding_has_figures_advice_and_numbers_in_its_sentence() -> None:
    records = [
        whole(8, phases=COPYING | {"replicate": 1.0}, replica_share=0.1, execution="passthrough"),
        hybrid(rows=1_000_000, dim=64, phases=LARGE_TABLE),
        timed([3.0] * 5 + [1.0, 1.7] * 40),
    ]
    raised = [item for record in records for item in apply_rules(record).items()]
    assert {name for name, _ in raised} >= {"replicate", "overhead", "noise", "passed_through"}
    for _, found in raised:
        assert found.figures
        assert found.advice.endswith(".")
        assert re.search(r"\d", found.text)
        assert dataclasses.is_dataclass(found)


def test_findings_are_in_the_order_of_the_rules() -> None:
    order = [rule.name for rule in rules()]
    raised = list(apply_rules(whole(8, phases=PHASES | {"replicate": 1.0}, replica_share=0.1)))
    assert raised == sorted(raised, key=order.index)
    assert len({rule.place for rule in rules()}) == len(order) == len(set(order)) >= 16


def test_every_finding_is_documented_in_the_order_of_reports() -> None:
    page = (ROOT / "docs" / "strategies.md").read_text()
    table = page[page.index("| finding | raised when | try |") :].split("\n\n")[0]
    documented = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert documented == [rule.headline for rule in rules()]


def test_the_same_record_raises_the_same_findings() -> None:
    record = timed([3.0] * 5 + [1.0, 1.7] * 40)
    assert apply_rules(record) == apply_rules(record)
