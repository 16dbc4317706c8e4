"""``ddp``: DistributedDataParallel, one process (rank) per device, each with the whole model.

    rank 0: rows 0-14  --> model --> loss --backward--+                +--> optimizer
                                                      |-- all-reduce --|
    rank 1: rows 15-29 --> model --> loss --backward--+   by bucket    +--> optimizer

Nothing is scattered, replicated or gathered: each rank loads its own rows, and only gradients travel,
in buckets, while backward still computes those of earlier layers.

The all-reduce averages over ranks. A rank's loss is the mean over its own rows, so it is first weighted by
their number (by tokens or not at all, as ``--reduction`` says); a rank without rows takes part with weight 0.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError
from dpexp.config.strategies.ddp import DdpOptions
from dpexp.data.batch import Batch
from dpexp.devices import HOST, physical, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.gradient_sync import GradientSync
from dpexp.strategies.modules.wrappers import Wrapper
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer


class RowWeightedSync(GradientSync):
    """Weights the loss of a rank, by its rows say: the average over ranks is then the mean over all rows.

    ``dp_size`` is the number of parts into which the ranks split the rows.
    """

    def __init__(self, dp_size: int) -> None:
        self.dp_size = dp_size

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        scale = batch.weight * self.dp_size
        (loss if scale == 1 else loss * scale).backward()  # type: ignore[no-untyped-call]


class Ddp(Strategy):
    """Each rank has the whole model and computes its rows; gradients are all-reduced."""

    needs = Needs(devices=False, gradients=True)
    options: DdpOptions

    def unused(self, names: Sequence[str]) -> None:
        if not self.options.find_unused:
            raise ConfigError(
                f"ddp: the loss does not depend on {listed(names)}: the all-reduce would wait for their "
                "gradients for ever. Freeze them (requires_grad_(False)), or use --find-unused"
            )

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        module = ddp_module(self.compiled(place(model, device)), device, timer, self.options)
        return Placed(module, device, device, (device,), RowWeightedSync(self.group.dp_size), timer=timer)


def ddp_module(
    model: nn.Module,
    device: torch.device,
    timer: Timer,
    options: DdpOptions,
    excluded: Iterable[nn.Parameter] = (),
) -> nn.Module:
    """The model in DistributedDataParallel, which ignores the ``excluded`` parameters.

    Without parameters to synchronize, or without a process group, it is the model itself.
    """
    ignored = {id(parameter) for parameter in excluded}
    named = model.named_parameters(remove_duplicate=False)  # DDP ignores a tied parameter by all of its names
    names = [name for name, each in named if id(each) in ignored]
    trains = any(each.requires_grad and id(each) not in ignored for each in model.parameters())
    if not (trains and distributed.is_initialized()):
        return model
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, names)
    return TimedDistributedDataParallel(model, device, timer, options)


class TimedDistributedDataParallel(Wrapper, DistributedDataParallel):
    """``DistributedDataParallel`` with the all-reduce of each bucket timed.

    Its communication hook averages as DDP does without one. A Python hook makes steps longer and cannot be
    removed: the first recorded step registers it.
    """

    transparent = True

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer, options: DdpOptions) -> None:
        super().__init__(module, bucket_cap_mb=options.bucket_mb, find_unused_parameters=options.find_unused)
        self.timer = timer
        self.device_of_rank = device
        self._hook: AllReduce | None = None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.timer.is_recording and self._hook is None:
            self._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
            self._hook = AllReduce()
            self.register_comm_hook(self._hook, AllReduce.start)
        if self._hook is not None:
            self._hook.times = []
        start = time.perf_counter_ns()
        outputs = super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        if self.timer.is_recording and torch.is_grad_enabled():
            self.timer.at_end(lambda: self._add_phases(start))
        return outputs

    def _add_phases(self, start: int) -> None:
        """Add DDP's figures of the step: backward's compute, the all-reduce, and their overlap."""
        backward = self.timer.start_ns("backward")
        if backward is None or self.logger is None:
            return
        self.logger.set_runtime_stats_and_log()
        figures = self._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        zero, device = _zero_ns(figures["forward_compute_time_start"], start, backward), self.device_of_rank
        computed = zero + figures["backward_compute_time_end"]
        reducing, reduced = (zero + figures[f"backward_comm_time_{end}"] for end in ("start", "end"))
        self.timer.add("backward_compute", device, backward, max(backward, computed))
        self.timer.add("allreduce", device, reducing, reduced)
        self.timer.add("overlap", device, reducing, max(reducing, min(reduced, computed)))
        if physical(device) == HOST:  # on an accelerator the host's clock shows when a kernel was queued
            for index, began, ended in sorted(self._hook.times if self._hook else ()):
                self.timer.add(f"allreduce_bucket{index}", device, began, ended)


def _zero_ns(forward: int, start: int, backward: int) -> int:
    """What to add to DDP's times, those of the host's clock, for times of ``time.perf_counter_ns``.

    DDP's ``forward`` began between ``start`` and ``backward``, up to a millisecond late. Where the
    host's clock was set meanwhile, it is taken to have begun at ``start``.
    """
    zero = max(
        time.perf_counter_ns() - time.time_ns() for _ in range(5)
    )  # a pause between the two makes it less
    return zero if start <= zero + forward <= backward else start - forward


class AllReduce:
    """The communication hook: averages over ranks as DDP does without one, and times each bucket.

    DDP's reducer holds its hook, out of the garbage collector's sight: a hook that held the module would keep
    it, and with it the process group and gloo's threads, until after the interpreter ends.
    """

    def __init__(self) -> None:
        self.times: list[tuple[int, int, int]] = []
        """(bucket, start, end) on ``time.perf_counter_ns``, of the latest step."""

    def start(self, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations as text
        tensor = bucket.buffer().div_(distributed.get_world_size())
        work = distributed.all_reduce(tensor, async_op=True)
        assert work is not None
        index, start, times = bucket.index(), time.perf_counter_ns(), self.times

        def reduced(done: Any) -> torch.Tensor:
            times.append((index, start, time.perf_counter_ns()))
            return done.value()[0]  # type: ignore[no-any-return]

        return work.get_future().then(reduced)
