"""Journals written by hand, for the tests of record and tracking to read, deliver and damage."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dpexp.config.run_config import RunConfig, config_digest
from dpexp.record.journal import Journal, new_run_id, now

PHASES = ("forward", "backward", "optimizer")


def begin(runs: Path, run_id: str = "", **changes: Any) -> Journal:
    """A new journal with the facts of a run's start, flushed."""
    journal = Journal(runs, run_id or new_run_id())
    config = RunConfig("whole", virtual=2).to_dict()
    del config["steps"]  # the caller writes as many as it likes
    config = changes.pop("config", config)
    facts = {
        "name": "whole-linear-cpu:0-1",
        "experiment": "dpexp",
        "strategy": "whole",
        "execution": "virtual",
        "status": "running",
        "started": (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds"),
        "config": config,
        "config_digest": config_digest(config),
        "environment": {
            "python": "3.11.2",
            "torch": "2.13.0",
            "host": "laptop",
            "os": "Linux",
            "threads": 2,
            "argv": ["scripts/run.py", "whole"],
            "git": {"commit": "0123abcd", "branch": "main", "dirty": True},
        },
        "data": {"name": "random", "samples": 30, "description": "seeded", "sha256": "ab" * 32},
        "devices": {"requested": ["cpu:0", "cpu:1"], "used": ["cpu:0", "cpu:1"], "output": "cpu:0"},
        "verification": {
            "checked": True,
            "dtype": "float64",
            "output_error": 3e-16,
            "gradient_error": 2e-16,
            "tolerance": 1e-12,
            "passed": True,
            "note": "",
        },
    }
    journal.set(facts | changes)
    journal.flush()
    return journal


def observe(journal: Journal) -> None:
    """Shapes and the device map, flushed."""
    shape = {"batch": 0, "scope": "replica", "module": "", "replica": 0, "device": "cpu:0"}
    sent = {"inputs": 300, "outputs": 120, "input_gradients": 0, "output_gradients": 120}
    parameter = {"module": "", "parameter": "weight", "kind": "parameter", "shape": [2, 5], "bytes": 40}
    journal.set(
        shapes=[shape | {"inputs": [[15, 5]], "outputs": [[15, 2]], "bytes": sent}],
        device_map=[parameter | {"dtype": "float32", "device": "cpu:0", "replicas": ["cpu:0", "cpu:1"]}],
    )
    journal.flush()


def step(journal: Journal, first: int, count: int) -> None:
    """``count`` measured steps from number ``first``, with values derived from their number; flushed."""
    numbers = range(first, first + count)
    journal.extend(
        {
            "steps.time_ms": [1.0 + number / 1000 for number in numbers],
            "steps.loss": [1 / (1 + number) for number in numbers],
            "steps.samples": [30 for _ in numbers],
        }
    )
    journal.flush()


def phases(journal: Journal, count: int = 3) -> None:
    """``count`` phase-timed steps with their timeline, and one metric by epoch; flushed."""
    for number in range(count):
        rows = [
            {"step": number, "phase": "step", "replica": None, "device": "cpu:0"}
            | {"start_us": 100 * number, "end_us": 100 * number + 90}
        ]
        for place, phase in enumerate(PHASES):
            span = {"step": number, "phase": phase, "replica": None, "device": "cpu:0"}
            start_us = 100 * number + 30 * place
            rows.append(span | {"start_us": start_us, "end_us": start_us + 25})
            journal.extend({f"phases.{phase}": [0.025]})
        journal.extend({"timeline": rows})
    journal.extend({"metrics.accuracy": [0.5, 0.75]})
    journal.set(memory={"cpu": 1 << 28}, digest={"weights": "ab", "outputs": "cd"})
    journal.flush()


def end(journal: Journal, status: str = "finished", error: dict[str, str] | None = None) -> Path:
    """Write how the run ended and close the journal; returns its path."""
    journal.set(status=status, ended=now(), error=error)
    journal.close()
    return journal.path


def complete(runs: Path, run_id: str = "", *, steps: int = 100, **changes: Any) -> Path:
    """The journal of a finished run, with 25 steps a line."""
    journal = begin(runs, run_id, **changes)
    observe(journal)
    for first in range(0, steps, 25):
        step(journal, first, min(25, steps - first))
    phases(journal)
    return end(journal)
