"""The loop: what a run records, what is refused before it opens, and that a seed determines the bits."""

from pathlib import Path

import pytest
from helpers.engine_runs import recorded

from dpexp.config.run_config import RunConfig

REPLICAS, TRAINING = "scatter replicate parallel_apply gather", "loss backward optimizer"


def test_a_record_has_every_measured_step(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=3, steps=7, warmup=2, phase_steps=5))
    assert {len(values) for values in record.steps.values()} == {7}
    assert record.steps["samples"] == [30, 30, 30, 10, 30, 30, 30]
    assert min(record.steps["time_ms"]) > 0
    assert record.summary["step_ms"]["n"] == 6  # of full batches
    assert list(record.phases) == f"{REPLICAS} {TRAINING}".split()
    assert {len(values) for values in record.phases.values()} == {5}
    replicas = [row for row in record.timeline if row["step"] == 0 and row["replica"] is not None]
    assert sorted((row["replica"], row["device"]) for row in replicas) == [
        (0, "cpu:0"),
        (1, "cpu:1"),
        (2, "cpu:2"),
    ]
    assert record.verification["passed"] is True
    assert record.devices == {
        "requested": ["cpu:0", "cpu:1", "cpu:2"],
        "used": ["cpu:0", "cpu:1", "cpu:2"],
        "output": "cpu:0",
    }


@pytest.mark.parametrize(
    ("strategy", "phases"),
    [
        ("single", f"forward {TRAINING}"),
        ("block", f"forward {REPLICAS} {TRAINING}"),
        ("functional", f"{REPLICAS} {TRAINING}"),
        ("hybrid", f"embedding transfer dense {REPLICAS} {TRAINING}"),
    ],
)
def test_each_strategy_has_its_phases(dpexp_home: Path, strategy: str, phases: str) -> None:
    record = recorded(dpexp_home, RunConfig(strategy, virtual=1 if strategy == "single" else 2, steps=1))
    assert set(record.phases) == set(phases.split())


def test_the_same_seed_gives_the_same_bits_and_another_gives_others(dpexp_home: Path) -> None:
    first, again = (
        recorded(dpexp_home, RunConfig("hybrid", virtual=3, steps=5), name) for name in ("a", "b")
    )
    other = recorded(dpexp_home, RunConfig("hybrid", virtual=3, steps=5, seed=1), "c")
    assert first.steps["loss"] == again.steps["loss"]
    assert first.digest == again.digest
    assert first.digest["weights"] != other.digest["weights"]
    assert first.digest["outputs"] != other.digest["outputs"]


def test_eval_runs_forward_only(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=2, steps=4, eval=True))
    assert "backward" not in record.phases
    assert record.verification["gradient_error"] is None
    assert len(set(record.steps["loss"])) > 1  # other batches, same weights
    assert (
        record.digest == recorded(dpexp_home, RunConfig("whole", virtual=2, steps=1, eval=True), "b").digest
    )


def test_epochs_count_the_data(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("single", epochs=2, devices="cpu"))
    assert record.steps["samples"] == [30, 30, 30, 10] * 2


def test_the_record_shows_no_check(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=2, steps=1, check=False))
    assert record.verification["checked"] is False
    assert "--no-check" in record.verification["note"]
