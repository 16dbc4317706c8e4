"""Findings on ranks: on Records with chosen figures, and on a real run with a slow rank."""

from pathlib import Path
from typing import Any

import pytest
from launching import run
from record_factory import whole

from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.report.findings import apply_rules


def ddp_run(compute_ms: list[float], allreduce_ms: float = 1.0, overlap_ms: float = 1.0) -> Record:
    """A run with a rank for each compute time, and an all-reduce of which a part overlaps."""
    record = whole(len(compute_ms))
    record.devices["ranks"] = [
        {"rank": rank, "host": f"host{rank // 2}", "device": f"cpu:{rank}"} for rank in range(len(compute_ms))
    ]
    record.timeline, record.phases = [], {"forward": [], "allreduce": [], "overlap": []}
    for step in range(3):
        step_start = step * 1e5

        def row(phase: str, replica: int | None, start: float, ms: float, step: int = step) -> None:
            device = f"cpu:{replica or 0}"
            times: dict[str, Any] = {"start_us": start, "end_us": start + 1e3 * ms}
            record.timeline.append(
                {"step": step, "phase": phase, "replica": replica, "device": device, **times}
            )

        row("step", None, step_start, max(compute_ms) + allreduce_ms)
        for phase, ms in (("forward", max(compute_ms)), ("allreduce", allreduce_ms), ("overlap", overlap_ms)):
            row(phase, None, step_start, ms)
            record.phases[phase].append(ms)
        for rank, ms in enumerate(compute_ms):
            row("forward", rank, step_start, ms / 2)
            row("backward_compute", rank, step_start + 500 * ms, ms / 2)
    summarize(record)
    return record


def texts(record: Record) -> dict[str, str]:
    return {name: finding.text for name, finding in apply_rules(record).items()}


def test_the_slow_rank_is_reported_with_its_host() -> None:
    text = texts(ddp_run([10.0, 10.5, 30.0, 9.5]))["straggler"]
    assert "Rank 2 (cpu:2 on host host1)" in text
    assert "30 ms" in text


@pytest.mark.parametrize("compute", [[10.0, 10.5, 11.0, 9.5], [0.2, 0.5], [10.0]])
def test_equal_and_fast_ranks_are_not_stragglers(compute: list[float]) -> None:
    assert "straggler" not in texts(ddp_run(compute))


def with_slow_steps(slow: dict[int, list[int]]) -> Record:
    """Twelve phase-timed steps of three ranks; {rank: its slow steps}."""
    record = ddp_run([10.0, 10.5, 9.5])
    rows = record.timeline
    record.timeline = []
    for step in range(12):
        for row in rows[: len(rows) // 3]:
            is_slow = row["replica"] is not None and step in slow.get(row["replica"], ())
            end = row["start_us"] + (5 if is_slow else 1) * (row["end_us"] - row["start_us"])
            record.timeline.append(row | {"step": step, "end_us": end})
    return record


def test_single_steps_in_which_one_rank_is_slow_are_found_with_the_rank() -> None:
    text = texts(with_slow_steps({1: [4, 9]}))["rank_outliers"]
    assert text.startswith("Rank 1 holds up 2 of 12 timed steps")
    assert "52.5 ms" in text


@pytest.mark.parametrize("slow", [{}, {0: [4], 1: [4], 2: [4]}, {1: list(range(12))}])
def test_steps_that_are_slow_on_all_ranks_or_always_are_not_a_ranks_outliers(
    slow: dict[int, list[int]],
) -> None:
    assert "rank_outliers" not in texts(with_slow_steps(slow))


def test_an_exposed_allreduce_is_found() -> None:
    assert "5 ms" in texts(ddp_run([10.0, 10.0], allreduce_ms=6.0, overlap_ms=1.0))["exposed_allreduce"]
    assert "exposed_allreduce" not in texts(ddp_run([10.0, 10.0], allreduce_ms=6.0, overlap_ms=5.5))


def test_a_slow_rank_is_found_in_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time, torch\n"
        "class Slow(torch.nn.Linear):\n"
        "    def example(self, samples, generator):\n"
        "        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)\n"
        "    def forward(self, x):\n"
        "        time.sleep(0.2 if os.environ.get('RANK') == '1' else 0.01)\n"
        "        return super().forward(x)\n"
        "def make():\n"
        "    return Slow(5, 2)\n"
    )
    options = ("--model", f"{tmp_path}/slow.py:make", "--steps", "2", "--warmup", "0", "--phase-steps", "3")
    done = run("ddp", "--devices", "3", *options)
    assert done.returncode == 0, done.stderr
    assert "Rank 1 (cpu:1 on host" in done.stdout
    assert "is the straggler" in done.stdout
