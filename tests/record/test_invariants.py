"""Records keep the invariants: those of each strategy, and those that are committed."""

from pathlib import Path

import pytest
from helpers.command_lines import ROOT
from helpers.engine_runs import recorded
from helpers.invariants import broken

from dpexp.config.run_config import RunConfig
from dpexp.record.fold import load_record

COMMITTED = sorted({path.parent for path in ROOT.glob("experiments/*/records/**/*.json")})


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        *((name, {}) for name in ("single", "whole", "block", "functional", "hybrid", "place")),
        ("whole", {"optimizer": "adam", "accumulate": 2}),
        ("hybrid", {"eval": True}),
    ],
)
def test_a_run_of_each_strategy_keeps_them(
    dpexp_home: Path, strategy: str, options: dict[str, object]
) -> None:
    model = {"place": "blocks", "block": "blocks"}.get(strategy, "")
    place = {"options": {"place": ("block1=cpu:0", "block2=cpu:1")}} if strategy == "place" else {}
    virtual = None if strategy == "single" else 2
    config = RunConfig(strategy, model=model, virtual=virtual, steps=8, phase_steps=4, **options, **place)
    assert broken(recorded(dpexp_home, config)) == []


@pytest.mark.parametrize(
    "folder", COMMITTED, ids=lambda folder: str(folder.relative_to(ROOT / "experiments"))
)
def test_committed_records_keep_them(folder: Path) -> None:
    for path in folder.glob("*.json"):
        assert broken(load_record(path)) == [], path


def test_a_record_that_breaks_them_is_named(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=2, steps=4, phase_steps=2))
    record.steps["samples"][1] = 7
    record.device_map[0]["bytes"] += 1
    record.verification["gradient_error"] = 1.0
    assert len(broken(record)) >= 3
