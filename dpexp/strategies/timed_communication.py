"""Timed communication: what DDP and FSDP2 call to exchange gradients and parameters, with its time."""

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import distributed

from dpexp.devices import HOST, physical
from dpexp.timing import Timer


class AllReduce:
    """The communication hook: averages over ranks as DDP does without one, and times each bucket.

    DDP's reducer holds its hook, out of the garbage collector's sight: a hook that held the module would keep
    it, and with it the process group and gloo's threads, until after the interpreter ends.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = physical(device)
        self._buckets: list[tuple[int, Any, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Forget the buckets; the device is idle."""
        self._buckets, self._zero_ns, self._zero = [], time.perf_counter_ns(), self._now()

    def start(self, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations as text
        """A future of the bucket's mean over the ranks, a vector."""
        tensor = bucket.buffer().div_(distributed.get_world_size())
        index, start, buckets = bucket.index(), self._now(), self._buckets
        work = distributed.all_reduce(tensor, async_op=True)
        assert work is not None

        def reduced(done: Any) -> torch.Tensor:
            buckets.append((index, start, self._now()))
            return done.value()[0]  # type: ignore[no-any-return]

        return work.get_future().then(reduced)

    def times(self) -> list[tuple[int, int, int]]:
        """(bucket, start, end) of the latest step, on ``time.perf_counter_ns``."""
        return [
            (index, self._ns(start), self._ns(end))
            for index, start, end in sorted(self._buckets, key=itemgetter(0))
        ]

    def _now(self) -> Any:
        """The host's clock; on an accelerator an event in the stream, since the host runs ahead of it."""
        if self._device == HOST:
            return time.perf_counter_ns()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def _ns(self, moment: Any) -> int:
        return moment if self._device == HOST else self._zero_ns + int(1e6 * self._zero.elapsed_time(moment))


class TimedCollective:
    """What FSDP2 calls to gather parameters, or to reduce and scatter gradients: the same, timed.

    A recorded step waits for its end. Parameters are gathered before a forward and again before a backward.
    """

    def __init__(self, name: str, timer: Timer, device: torch.device) -> None:
        self.name, self.timer, self.device = name, timer, device
        newer, older = _COLLECTIVES[name]  # torch 2.13 has renamed them
        self.start = getattr(distributed, newer, None) or getattr(distributed, older)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An empty buffer of this shape, as FSDP2 asks for."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options: Any) -> Any:
        is_backward = torch._C._current_graph_task_id() != -1
        name = f"backward {self.name}" if is_backward and self.name == "all-gather" else self.name
        with self.timer.phase(name, self.device):
            work = self.start(output_tensor, input_tensor, **options)
            if self.timer.is_recording and work is not None:
                work.wait()
        return work


_COLLECTIVES = {
    "all-gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce-scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
}
