"""Timer: measures the phases of a step, and the part of each replica.

    step     |------------------------------------------|
    phases   |scatter|replicate|parallel_apply|gather|…
    replicas                   |0------|
                               |1---------|

A phase begins and ends with all used devices idle, so that its time contains its own work and no work that
was queued before. That costs overlap, so phases are timed in a separate pass, and the time of a step comes
from steps without a recording timer. Replicas run in parallel: on CUDA, events in their streams time them
without a wait.

Times are milliseconds in ``phases`` and microseconds since the first step in ``timeline``.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from dpexp import devices
from dpexp.record.record import Row

_NOTHING = nullcontext()


class Timer:
    """Contexts for the phases of a step: a shared null context, without cost, unless it records."""

    def __init__(self, used: Sequence[torch.device] = ()) -> None:
        self.phases: dict[str, list[float]] = {}
        self.timeline: list[Row] = []
        self._used = tuple(used)
        self.is_recording = False
        self._step = -1
        self._zero_ns = 0
        self._step_ms: dict[str, float] = {}
        self._lock = threading.Lock()  # phases may end in several threads
        self._at_end: list[Callable[[], None]] = []
        self._anchors: dict[torch.device, tuple[Any, float]] = {}
        self._names: list[str] | None = None

    def phase(self, name: str, device: torch.device = devices.HOST) -> AbstractContextManager[None]:
        """``with timer.phase("scatter"):`` a part of the step; may nest and repeat."""
        if self.is_recording:
            return self._phase(name, device)
        return _NOTHING if self._names is None else _listed(name, self._names)

    def replica(self, name: str, replica: int, device: torch.device) -> AbstractContextManager[None]:
        """The part of phase ``name`` of one replica on its device; called in the replica's thread."""
        if not self.is_recording:
            return _NOTHING
        measure = self._by_events if device.type == "cuda" else self._by_clock
        return measure(name, replica, device)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record one step, from idle devices to idle devices."""
        devices.synchronize(self._used)
        self.is_recording, self._step, self._step_ms = True, self._step + 1, {}
        self._zero_ns = self._zero_ns or time.perf_counter_ns()
        start = self._now_us()
        self._anchors = {device: self._anchor(device) for device in set(self._used) if device.type == "cuda"}
        try:
            yield
            devices.synchronize(self._used)
            self._row("step", None, devices.HOST, start, self._now_us())
        finally:
            self.is_recording = False
        for resolve in self._at_end:
            resolve()
        self._at_end = []
        for name, ms in self._step_ms.items():
            self.phases.setdefault(name, []).append(ms)

    @contextmanager
    def names(self) -> Iterator[list[str]]:
        """Time nothing inside: the list has the names of the phases that run, the innermost last."""
        self._names = found = list[str]()
        try:
            yield found
        finally:
            self._names = None

    def at_end(self, measure: Callable[[], None]) -> None:
        """Call ``measure`` at the end of the recorded step, to ``add`` what was measured elsewhere."""
        self._at_end.append(measure)

    def start_ns(self, name: str) -> int | None:
        """The last start of the phase in this step, on ``time.perf_counter_ns``; None without one."""
        for row in reversed(self.timeline):
            if row["step"] == self._step and row["phase"] == name:
                return self._zero_ns + int(row["start_us"] * 1e3)
        return None

    def add(self, name: str, device: torch.device, start_ns: int, end_ns: int) -> None:
        """Add a phase of the recorded step that was measured elsewhere, on ``time.perf_counter_ns``."""
        self._add(name, device, (start_ns - self._zero_ns) / 1e3, (end_ns - self._zero_ns) / 1e3)

    def _add(self, name: str, device: torch.device, start_us: float, end_us: float) -> None:
        with self._lock:
            self._step_ms[name] = self._step_ms.get(name, 0.0) + (end_us - start_us) / 1e3
        self._row(name, None, device, start_us, end_us)

    @contextmanager
    def _phase(self, name: str, device: torch.device) -> Iterator[None]:
        devices.synchronize(self._used)
        start = self._now_us()
        yield
        devices.synchronize(self._used)
        self._add(name, device, start, self._now_us())

    @contextmanager
    def _by_clock(self, name: str, replica: int, device: torch.device) -> Iterator[None]:
        start = self._now_us()
        yield
        self._row(name, replica, device, start, self._now_us())

    @contextmanager
    def _by_events(self, name: str, replica: int, device: torch.device) -> Iterator[None]:
        begin, end = _event(), _event()
        begin.record(torch.cuda.current_stream(device))
        yield
        end.record(torch.cuda.current_stream(device))
        anchor, at_us = self._anchors[device]

        def resolve() -> None:
            start_us = at_us + 1e3 * anchor.elapsed_time(begin)
            self._row(name, replica, device, start_us, at_us + 1e3 * anchor.elapsed_time(end))

        self._at_end.append(resolve)

    def _anchor(self, device: torch.device) -> tuple[Any, float]:
        """An event on the idle device and its time on the host's clock, to which other events relate."""
        event = _event()
        event.record(torch.cuda.current_stream(device))
        return event, self._now_us()

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self._zero_ns) / 1e3

    def _row(self, phase: str, replica: int | None, device: torch.device, start: float, end: float) -> None:
        self.timeline.append(
            {
                "step": self._step,
                "phase": phase,
                "replica": replica,
                "device": devices.label(device),
                "start_us": round(start, 3),
                "end_us": round(end, 3),
            }
        )


@contextmanager
def _listed(name: str, names: list[str]) -> Iterator[None]:
    names.append(name)
    try:
        yield
    finally:
        names.pop()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
