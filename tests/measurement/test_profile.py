"""``--profile``: further steps under torch.profiler, their trace and a table of their costliest operators."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.engine_runs import recorded
from helpers.in_ranks import records

from dpexp.config.run_config import RunConfig
from dpexp.measurement.steps import STEPS
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE
from dpexp.record.view import RecordView
from dpexp.report.sections import sections

SHORT: dict[str, Any] = {"steps": 3, "warmup": 1, "phase_steps": 1, "batch_size": 40, "threads": 1}
SHORT |= {"accumulate": 2, "optimizer": "adam"}


def trace(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress((folder / PROFILE_TRACE).read_bytes()))["traceEvents"])


def spans(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in events if each["name"] == name and each.get("cat") == "cpu_op"]


def test_a_profile_changes_nothing_else_that_a_run_records(dpexp_home: Path) -> None:
    without = recorded(dpexp_home, RunConfig("single", devices="cpu", **SHORT), "without")
    profiled = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT), "profiled")
    for of in ("digest", "shapes", "device_map", "memory_use", "verification", "metrics"):
        assert getattr(profiled, of) == getattr(without, of), of
    assert profiled.steps["loss"] == without.steps["loss"]
    assert "profile" not in without.work
    assert not (dpexp_home / "runs/without" / PROFILE_TRACE).exists()


def test_the_operators_of_all_replicas_are_in_trace_and_table_for_their_owner(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("whole", virtual=2, profile=True, **SHORT))
    assert found.work["profile"] == {"steps": STEPS}
    folder, events = dpexp_home / "runs/run", trace(dpexp_home / "runs/run")
    assert len(spans(events, "aten::addmm")) == 2 * STEPS  # one in each replica
    assert len([each for each in events if each["name"].startswith("ProfilerStep#")]) == STEPS
    assert "aten::addmm" in (folder / PROFILE_TABLE).read_text()
    assert [(folder / name).stat().st_mode & 0o077 for name in (PROFILE_TRACE, PROFILE_TABLE)] == [0, 0]
    (section,) = [each for each in sections(RecordView(found)) if each.title == "Profile"]
    assert PROFILE_TRACE in section.lines[0]


def test_ranks_profile_together_and_the_first_keeps_its_trace(dpexp_home: Path) -> None:
    options = {"steps": 2, "warmup": 1, "phase_steps": 0, "check": False, "profile": True}
    (profiled,) = records(2, {"strategy": "ddp"} | options)
    events = trace(dpexp_home / "runs" / profiled.run_id)
    assert len(spans(events, "c10d::allreduce_")) >= STEPS
    assert len({each["pid"] for each in spans(events, "aten::addmm")}) == 1


@pytest.mark.gpu
def test_on_cuda_the_trace_has_kernels(dpexp_home: Path) -> None:
    recorded(dpexp_home, RunConfig("single", devices="cuda:0", profile=True, **SHORT))
    assert any(each.get("cat") == "kernel" for each in trace(dpexp_home / "runs/run"))


class Fragile(torch.nn.Linear):
    """Does not stand to be profiled."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.autograd.profiler._is_profiler_enabled:
            raise ValueError("a profiler is on")
        return super().forward(x)


def test_a_model_that_fails_under_the_profiler_leaves_a_note(dpexp_home: Path) -> None:
    config = RunConfig("single", devices="cpu", profile=True, model=f"{__file__}:Fragile", **SHORT)
    note = recorded(dpexp_home, config).work["profile"]["note"]
    assert note.startswith("not profiled: ValueError: a profiler is on")
