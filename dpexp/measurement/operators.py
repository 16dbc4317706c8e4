"""Operators: some further steps under ``torch.profiler``, their costliest operators and their trace.

    warm up | step 1 | step 2 | step 3      each between idle devices, all on the same batch

They come last, after everything that a run records of its training, and so change none of it. Every rank
profiles its steps, so that none waits for one that is slower for it; the first rank's are kept.
"""

import functools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from dpexp import devices
from dpexp.config.errors import describe
from dpexp.config.printable import printable_line
from dpexp.data.batch import Batch
from dpexp.record.files import PROFILER_TRACE, write_atomically
from dpexp.record.record import Row
from dpexp.record.redact import redact
from dpexp.training.trainer import Trainer

WARM_UP, STEPS = 1, 3
COSTLIEST = 10
MOST_BYTES = 50_000_000
"""A larger trace has its last step only: MLflow's artifact view shows no larger file."""
MOST_READ = 1_000_000_000
"""A larger trace is not kept: it is read into memory to be written again."""
_NAME = 200
"""The most characters of an operator's name in a Record; a user's class may have any name."""


@dataclass
class OperatorProfile:
    """The profiled steps. ``trace`` is in Chrome's format, and empty where ``note`` says why."""

    rows: list[Row] = field(default_factory=list)
    device: str = ""
    total_ms: float = 0.0
    trace: bytes = b""
    note: str = ""

    def work(self, folder: Path) -> Row:
        """``work.operators`` of a Record; the trace is written into the run's folder."""
        times = {"steps": STEPS, "device": self.device, "total_ms": self.total_ms, "rows": self.rows}
        found, note = times if self.rows else {}, self.note
        if self.trace:
            try:
                write_atomically(folder / PROFILER_TRACE, self.trace)
                found["trace"] = {"bytes": len(self.trace)}
            except OSError as error:  # the disk is full
                note = f"the trace could not be written: {error.strerror}"
        return found | ({"note": note} if note else {})


def profile_operators(trainer: Trainer, batches: Sequence[Batch]) -> OperatorProfile:
    """Take ``WARM_UP + STEPS`` steps, one a batch, and profile all but the first; every rank calls this.

    What fails in the profiler, or in these steps on every rank, is a note: the run's training is done. An
    error that not every rank has is raised, because the others wait for this rank.
    """
    profiler, found = _Profiler(trainer.placed.devices), OperatorProfile()
    try:
        with profiler:
            for batch in batches:
                trainer.step(batch)
                devices.synchronize(trainer.placed.devices)
                profiler.step_ended()
    except Exception as error:  # of any kind: a user's model may not stand to be observed
        if not trainer.group.all_failed("operators", type(error).__name__):
            raise
        return OperatorProfile(note=f"not profiled: {describe(error)}")
    if trainer.group.is_first:
        profiler.attempt(lambda: profiler.report(found))
    found.note = found.note or profiler.note
    return found


class _Profiler:
    """``torch.profiler`` around steps; its own errors end in ``note``, and the steps are taken without it."""

    def __init__(self, used: Sequence[torch.device]) -> None:
        self.note, self._is_cuda = "", any(device.type == "cuda" for device in used)
        self._profile: Any = None

    def __enter__(self) -> None:
        self.attempt(self._start)

    def __exit__(self, *exception: object) -> None:
        if self._profile is not None:
            self.attempt(self._profile.stop)

    def step_ended(self) -> None:
        """The next step begins."""
        if self._profile is not None:
            self.attempt(self._profile.step)

    def attempt(self, call: Callable[[], None]) -> None:
        """Call it; what it raises is noted, and the profiler dropped: to go on could end the process."""
        try:
            call()
        except Exception as error:  # of any kind: it is not one of the run
            self._profile, self.note = None, self.note or f"not profiled: {describe(error)}"

    def _start(self) -> None:
        if torch.autograd.profiler._is_profiler_enabled:
            raise RuntimeError("another profiler is recording, whose events this one would take")
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes of its start and end to stderr
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * self._is_cuda)]
        once = schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
        threads = _ExperimentalConfig(profile_all_threads=True)  # those of replicas
        self._profile = profile(
            activities=activities,
            schedule=once,
            experimental_config=threads,
            acc_events=True,  # else torch 2.11 warns
        )
        self._profile.start()

    def report(self, found: OperatorProfile) -> None:
        """Add operators and trace."""
        if self._profile is None:
            return
        averages = [each for each in self._profile.key_averages() if not each.is_user_annotation]
        on_cpu = torch._C._autograd.DeviceType.CPU
        called = [each for each in averages if each.device_type == on_cpu]
        kernels = [each for each in averages if each.device_type != on_cpu]
        found.device = "cuda" if self._is_cuda else "cpu"
        found.total_ms = round(sum(map(self._self_ms, kernels if self._is_cuda else called)), 6)
        costliest = sorted(called, key=self._self_ms, reverse=True)[:COSTLIEST]
        found.rows = [
            {"name": each.key[:_NAME], "calls": each.count / STEPS, "self_ms": round(self._self_ms(each), 6)}
            for each in costliest
        ]
        self._export(found)

    def _self_ms(self, event: Any) -> float:
        """The time of one step on the device, or on the CPU where there is no other."""
        microseconds = event.self_device_time_total if self._is_cuda else event.self_cpu_time_total
        return float(microseconds) / 1e3 / STEPS

    def _export(self, found: OperatorProfile) -> None:
        with tempfile.TemporaryDirectory(prefix="dpexp-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            found.trace, found.note = bounded_trace(path)


def bounded_trace(path: Path) -> tuple[bytes, str]:
    """The trace in a file, without credentials and control characters, and what is not in it.

    Of a trace of more than ``MOST_BYTES`` the last step. Raises ValueError for what is not JSON.
    """
    if (size := path.stat().st_size) > MOST_READ:
        return b"", f"the trace has {size / 1e6:,.0f} MB and is not kept"
    found = json.loads(path.read_bytes())
    found.pop("traceName", None)  # the temporary file
    found["traceEvents"] = _distinct(found["traceEvents"])
    clean = functools.cache(lambda text: printable_line(redact(text)))
    all_steps = _encoded(_cleaned(found, clean))
    if len(all_steps) <= MOST_BYTES:
        return all_steps, ""
    last = _encoded(_cleaned(_last_step(found), clean))
    if len(last) > MOST_BYTES:
        return b"", f"the trace of one step has {len(last) / 1e6:,.0f} MB and is not kept"
    return last, f"the trace has the last step only: that of {STEPS} has {len(all_steps) / 1e6:,.0f} MB"


def _distinct(events: Sequence[Row]) -> list[Row]:
    """The events, those of names once each: torch names a thread as often as it was seen."""
    names = {json.dumps(each, sort_keys=True): each for each in events if each["ph"] == "M"}
    return [*names.values(), *(each for each in events if each["ph"] != "M")]


def _last_step(trace: Row) -> Row:
    """The trace with the events that begin in its last step, and those that have no time."""
    events = trace["traceEvents"]
    steps = [each for each in events if each["name"].startswith("ProfilerStep#") and "dur" in each]
    begin = max(each["ts"] for each in steps)
    return trace | {"traceEvents": [e for e in events if e["ph"] == "M" or e.get("ts", 0) >= begin]}


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """The value with its texts clean; keys are torch's own."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _cleaned(item, clean) for key, item in value.items()}
    return [_cleaned(item, clean) for item in value] if isinstance(value, list) else value


def _encoded(trace: Row) -> bytes:
    return json.dumps(trace, separators=(",", ":")).encode()
