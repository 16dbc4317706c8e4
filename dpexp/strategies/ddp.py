"""``ddp``: DistributedDataParallel, one process (rank) a device, each with the whole model.

    rank 0: rows 0-14  --> model --> loss --backward--+                +--> optimizer
                                                      |-- all-reduce --|
    rank 1: rows 15-29 --> model --> loss --backward--+   by bucket    +--> optimizer

Nothing is scattered, replicated or gathered: each rank fetches its own rows, and only gradients travel,
in buckets, while backward is still computing those of the layers before.

The ranks' gradients are averaged. A rank's loss is the mean over its own rows, so that with uneven parts
it is weighted by them first; a rank without rows takes part with weight 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpexp.config import ConfigError, DdpOptions
from dpexp.data import Batch
from dpexp.devices import HOST, physical, place
from dpexp.strategies.base import GradientSync, Needs, Placed, Strategy
from dpexp.strategies.wrappers import Forward, Wrapper
from dpexp.timing import Timer


class RowWeightedSync(GradientSync):
    """The mean over all rows, from the means over each rank's rows: the group averages over ranks."""

    def __init__(self, ranks: int) -> None:
        self.group = ranks

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        scale = batch.weight * self.group
        (loss if scale == 1 else loss * scale).backward()  # type: ignore[no-untyped-call]


class Ddp(Strategy):
    """Each rank holds the whole model and computes its rows; gradients are all-reduced."""

    name = "ddp"
    needs = Needs(devices=False, gradients=True)

    @property
    def options(self) -> DdpOptions:
        """The strategy's own options."""
        assert isinstance(self.config.options, DdpOptions)
        return self.config.options

    def unused(self, names: Sequence[str]) -> None:
        if self.options.find_unused:
            return
        raise ConfigError(
            f"ddp: the loss does not depend on {', '.join(names)}: the all-reduce would wait for their "
            "gradients for ever. Freeze them (requires_grad_(False)), or say --find-unused"
        )

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        module = synchronized(self.compiled(place(model, device)), device, timer, self.options)
        return Placed(module, device, device, (device,), RowWeightedSync(self.group.size))


def synchronized(
    model: nn.Module,
    device: torch.device,
    timer: Timer,
    options: DdpOptions | None = None,
    apart: Iterable[nn.Parameter] = (),
) -> nn.Module:
    """The model in DistributedDataParallel, but for parameters that are kept ``apart``.

    Where that leaves nothing to synchronize, the model is only timed.
    """
    left_out = {id(each) for each in apart}
    names = [name for name, each in model.named_parameters() if id(each) in left_out]
    trains = any(each.requires_grad and id(each) not in left_out for each in model.parameters())
    if not (trains and torch.distributed.is_initialized()):
        return Forward(model, timer)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
        model, names
    )
    return Synchronized(model, device, timer, options or DdpOptions())


@dataclass
class _Bucket:
    """One bucket's all-reduce in a step, on ``time.perf_counter_ns``."""

    index: int
    start: int
    end: int = 0


class Synchronized(Wrapper, DistributedDataParallel):
    """``DistributedDataParallel`` whose forward, and whose buckets' all-reduces, are timed.

    Its hook averages like DDP's own default, with a clock. A hook in Python makes a step longer, and none can
    be taken away again: it is registered when the first step is recorded.
    """

    transparent = True

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer, options: DdpOptions) -> None:
        super().__init__(
            module,
            bucket_cap_mb=options.bucket_mb,
            find_unused_parameters=options.find_unused,
        )
        self.timer = timer
        self.device_of_rank = device
        self._buckets: list[_Bucket] = []
        self._is_hooked = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.timer.recording and not self._is_hooked:
            self._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
            self.register_comm_hook(None, self._reduce)
            self._is_hooked = True
        self._buckets = []
        start = time.perf_counter_ns()
        with self.timer.phase("forward"):
            outputs = super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        if self.timer.recording and torch.is_grad_enabled():
            self.timer.at_end(lambda: self._measure(start))
        return outputs

    def _reduce(self, state, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations as text
        tensor = bucket.buffer().div_(torch.distributed.get_world_size())
        work = torch.distributed.all_reduce(tensor, async_op=True)
        assert work is not None
        timed = _Bucket(bucket.index(), time.perf_counter_ns())
        self._buckets.append(timed)

        def reduced(done: Any) -> torch.Tensor:
            timed.end = time.perf_counter_ns()
            return done.value()[0]  # type: ignore[no-any-return]

        return work.get_future().then(reduced)

    def _measure(self, start: int) -> None:
        """DDP's own figures of the step: backward's compute, the all-reduce, and what they overlap."""
        began = self.timer.start_ns("backward")
        if began is None or self.logger is None:
            return
        self.logger.set_runtime_stats_and_log()
        facts = self._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        zero, device = start - facts["forward_compute_time_start"], self.device_of_rank
        computed = zero + facts["backward_compute_time_end"]
        reducing, reduced = (zero + facts[f"backward_comm_time_{end}"] for end in ("start", "end"))
        self.timer.add("backward_compute", device, began, max(began, computed))
        self.timer.add("allreduce", device, reducing, reduced)
        self.timer.add("overlap", device, reducing, max(reducing, min(reduced, computed)))
        if physical(device) == HOST:  # elsewhere the host's clock only tells when a kernel was queued
            for each in self._buckets:
                if each.end:
                    self.timer.add(f"allreduce_bucket{each.index}", device, each.start, each.end)
