"""``--profile``: further steps under torch.profiler, their costliest operators and their trace."""

import dataclasses
import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import recorded
from launching import record, run
from torch.profiler import ProfilerActivity, profile

from dpexp.config.run_config import RunConfig
from dpexp.measurement import operators
from dpexp.measurement.operators import COSTLIEST, STEPS, bounded_trace
from dpexp.record.files import PROFILER_TRACE
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import summary
from dpexp.report.sections import sections

SHORT: dict[str, Any] = {"steps": 3, "warmup": 1, "phase_steps": 1, "batch_size": 40, "threads": 1}
SHORT |= {"accumulate": 2, "optimizer": "adam"}


def trained(record: Record) -> list[Any]:
    """What a run records of its training and of its other passes, without times."""
    return [
        *(record.steps[key] for key in ("loss", "samples")),
        *(record.shapes, record.device_map, record.digest, record.verification, record.memory_use),
        *(sorted(record.phases), record.work["flops"], record.summary.get("collectives")),
    ]


def trace(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / PROFILER_TRACE).read_bytes())["traceEvents"])


def spans(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in events if each["name"] == name and each.get("cat") == "cpu_op"]


def outermost(called: list[dict[str, Any]]) -> int:
    """How many spans are not inside of another."""

    def is_inside(one: dict[str, Any], other: dict[str, Any]) -> bool:
        begin, end = other["ts"], other["ts"] + other["dur"]
        return one["tid"] == other["tid"] and begin <= one["ts"] < end and one is not other

    return sum(not any(is_inside(one, other) for other in called) for one in called)


def test_a_profile_changes_nothing_else_that_a_run_records(dpexp_home: Path) -> None:
    without = recorded(dpexp_home, RunConfig("single", devices="cpu", **SHORT), "without")
    profiled = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT), "profiled")
    assert trained(profiled) == trained(without)
    assert "operators" not in without.work
    assert not (dpexp_home / "runs/without" / PROFILER_TRACE).exists()


def test_the_costliest_operators_of_all_replicas_and_the_trace_are_recorded(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("whole", virtual=2, profile=True, **SHORT)).work["operators"]
    rows, events = found["rows"], trace(dpexp_home / "runs/run")
    assert (found["steps"], found["device"], len(rows)) == (STEPS, "cpu", COSTLIEST)
    assert [row["self_ms"] for row in rows] == sorted((row["self_ms"] for row in rows), reverse=True)
    assert 0 < sum(row["self_ms"] for row in rows) <= found["total_ms"]
    for row in rows:
        called = spans(events, row["name"])
        assert outermost(called) <= row["calls"] * STEPS <= len(called)  # one that calls itself is one call
    assert len(spans(events, "aten::addmm")) == 2 * STEPS  # one in each replica
    assert len([each for each in events if each["name"].startswith("ProfilerStep#")]) == STEPS
    content = (dpexp_home / "runs/run" / PROFILER_TRACE).read_bytes()
    assert found["trace"] == {"bytes": len(content)}


def format_faults(events: list[dict[str, Any]]) -> list[str]:
    """What in a trace Chrome's Trace Event Format does not have, or Perfetto would not show."""
    needed = {"X": ("dur",), "M": ("args",), "i": ("s",), "s": ("id", "cat"), "f": ("id", "cat", "bp")}
    common = ("name", "ph", "ts", "pid", "tid")
    faults = [f"lacks {key}: {each}" for each in events for key in common if key not in each]
    faults += [f"unknown phase: {each}" for each in events if each["ph"] not in needed]
    for each in events:
        faults += [f"lacks {key}: {each}" for key in needed.get(each["ph"], ()) if key not in each]
        times = [each["ts"], each.get("dur", 0)]
        faults += [f"not a time: {each}" for time in times if not (math.isfinite(time) and time >= 0)]
    known = [json.dumps(each, sort_keys=True) for each in events]
    faults += [f"twice: {text}" for text, count in Counter(known).items() if count > 1]
    starts, ends = ({each["id"] for each in events if each["ph"] == kind} for kind in "sf")
    return faults + [f"a flow without its other end: {flow}" for flow in starts ^ ends]


@pytest.mark.parametrize("config", [RunConfig("single", devices="cpu"), RunConfig("whole", virtual=2)])
def test_the_trace_is_in_chromes_format(dpexp_home: Path, config: RunConfig) -> None:
    recorded(dpexp_home, dataclasses.replace(config, profile=True, **SHORT))
    content = (dpexp_home / "runs/run" / PROFILER_TRACE).read_bytes()
    found = json.loads(content, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    events = found["traceEvents"]
    assert len(events) > 100
    assert {"X", "M"} <= {each["ph"] for each in events}
    assert format_faults(events) == []


def test_ranks_profile_together_and_the_first_keeps_its_trace(dpexp_home: Path) -> None:
    words = "ddp --virtual 2 --steps 2 --warmup 1 --phase-steps 0 --no-check --profile --json"
    profiled = record(run(*words.split()))
    events = trace(dpexp_home / "runs" / profiled["run_id"])
    assert len(spans(events, "c10d::allreduce_")) >= STEPS
    assert len({each["pid"] for each in spans(events, "aten::addmm")}) == 1
    assert profiled["work"]["operators"]["rows"]


def test_the_full_report_has_ten_operators_and_the_short_one_three(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT))
    (full,) = [each for each in sections(RecordView(found), full=True) if each.title == "Operators"]
    (short,) = [each for each in sections(RecordView(found)) if each.title == "Operators"]
    assert full.table is not None
    assert [row[0] for row in full.table.rows] == [row["name"] for row in found.work["operators"]["rows"]]
    assert (short.table, short.lines) == (None, full.lines)
    assert found.work["operators"]["rows"][2]["name"] in short.lines[0]
    assert found.work["operators"]["rows"][3]["name"] not in short.lines[0].split("most ")[1].split()


def test_the_name_of_an_operator_commands_no_terminal(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT))
    found.work["operators"]["rows"][0]["name"] = "\x1b[2Jclear"  # a user's class may have any
    text = summary(found, width=100, full=True)
    assert (text.count(r"\u001b[2Jclear"), "\x1b" in text) == (2, False)


@pytest.mark.gpu
def test_on_cuda_the_time_of_an_operator_is_that_of_its_kernels(dpexp_home: Path) -> None:
    found = recorded(dpexp_home, RunConfig("single", devices="cuda:0", profile=True, **SHORT))
    profiled = found.work["operators"]
    own = sum(row["self_ms"] for row in profiled["rows"])
    assert (profiled["device"], 0 < own <= profiled["total_ms"] * 1.001) == ("cuda", True)
    assert any(each.get("cat") == "kernel" for each in trace(dpexp_home / "runs/run"))


def test_where_the_profiler_cannot_start_the_run_finishes_with_a_note(dpexp_home: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as outer:
        found = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT))
    assert list(found.work["operators"]) == ["note"]
    assert found.work["operators"]["note"].startswith("not profiled: RuntimeError: another profiler")
    assert any(each.key == "aten::addmm" for each in outer.key_averages())  # the other profiler went on


def test_a_profiler_that_failed_to_start_is_not_called_again(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA a step of such a profiler ends the process with a segmentation fault."""
    called = list[str]()

    def start(self: profile) -> None:
        raise RuntimeError("no more counters")

    monkeypatch.setattr(profile, "start", start)
    for name in ("step", "stop"):
        monkeypatch.setattr(profile, name, lambda self, name=name: called.append(name))
    found = recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, **SHORT))
    assert found.work["operators"]["note"].startswith("not profiled: RuntimeError: no more counters")
    assert called == []


class Threaded(torch.nn.Linear):
    """Computes in a new thread, as the replicas of several accelerators do."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().forward, x).result()


def test_operators_in_other_threads_are_seen(dpexp_home: Path) -> None:
    model = f"{__file__}:Threaded"
    recorded(dpexp_home, RunConfig("single", devices="cpu", profile=True, model=model, **SHORT))
    assert len(spans(trace(dpexp_home / "runs/run"), "aten::addmm")) == STEPS


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
    note = recorded(dpexp_home, config).work["operators"]["note"]
    assert note.startswith("not profiled: ValueError: a profiler is on")


def traced(folder: Path, names: list[str]) -> Path:
    """A trace with three steps, each with one event of every name."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "ts": 0, "args": {"name": "python"}}]
    for step in range(1, STEPS + 1):
        events.append({"ph": "X", "name": f"ProfilerStep#{step}", "ts": 100 * step, "dur": 90})
        events += [{"ph": "X", "name": name, "ts": 100 * step + 1, "dur": 1} for name in names]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "traceName": str(path)}))
    return path


def test_of_a_large_trace_the_last_step_is_kept_and_of_a_larger_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = traced(tmp_path, ["aten::mm"] * 20)
    whole, note = bounded_trace(path)
    assert (len(json.loads(whole)["traceEvents"]), note) == (1 + 3 * 21, "")
    monkeypatch.setattr(operators, "MOST_BYTES", len(whole) - 1)
    last, note = bounded_trace(path)
    kept = json.loads(last)["traceEvents"]
    assert [each["name"] for each in kept[:2]] == ["process_name", "ProfilerStep#3"]
    assert len(kept) == 1 + 21
    assert "the last step only" in note
    monkeypatch.setattr(operators, "MOST_BYTES", len(last) - 1)
    assert bounded_trace(path)[0] == b""
    monkeypatch.setattr(operators, "MOST_READ", 10)
    assert bounded_trace(path) == (b"", "the trace has 0 MB and is not kept")


def test_a_trace_has_no_credentials_and_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_TOKEN", "100200")
    content, _ = bounded_trace(traced(tmp_path, ["load 100200", "\x1b[2Jclear", "\ud83d"]))
    events = json.loads(content)["traceEvents"]
    assert [each["name"] for each in events[2:5]] == ["load ***", r"\u001b[2Jclear", r"\ud83d"]
    assert events[1]["ts"] == 100
    assert "traceName" not in json.loads(content)
