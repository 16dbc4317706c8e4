"""``ddp``: DistributedDataParallel, one process (rank) per device, each with the whole model.

    rank 0: rows 0-14  --> model --> loss --backward--+                +--> optimizer
                                                      |-- all-reduce --|
    rank 1: rows 15-29 --> model --> loss --backward--+   by bucket    +--> optimizer

Nothing is scattered, replicated or gathered: each rank loads its own rows, and only gradients travel,
in buckets, while backward still computes those of earlier layers.

The all-reduce averages over ranks. A rank's loss is the mean over its own rows, so it is first weighted by
their number (by tokens or not at all, as ``--reduction`` says); a rank without rows takes part with weight 0.

``fsdp``: FSDP2's ``fully_shard``, one process (rank) per device, each with a shard of every parameter.

    rank 0: rows 0-14  --all-gather block--> forward --free--> ... --all-gather--> backward --+
                                                                                              | reduce-scatter
    rank 1: rows 15-29 --all-gather block--> forward --free--> ... --all-gather--> backward --+

A rank keeps its rows of each parameter, of its gradient and of the optimizer's state; it has the full
parameters of a block only while the block computes. Blocks with a tied parameter are gathered together.
Data, weights and ranks without rows are as in ``ddp``.

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.

SyncBatchNorm: batch statistics of the rows of all ranks, which PyTorch computes on accelerators only.

On the host it raises an error as soon as there is a process group: ``check_sync_batch_norm`` says so before a
run begins. ``on_one_device`` replaces it by a plain batch norm, which computes the same where all rows are on
one device, as those of a verification's reference are.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.config.errors import ConfigError, listed
from dpexp.config.strategy_options import DdpOptions, FsdpOptions
from dpexp.data.batch import Batch
from dpexp.devices import HOST, physical, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules import EmbeddingTable, Wrapper, check_no_hooks, matching
from dpexp.strategies.placed import DTensorShards, GradientSync, Placed
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


class UnitShards(DTensorShards):
    """Each rank has its rows of every parameter; ``units`` are gathered and freed together."""

    def __init__(self, units: Mapping[str, str]) -> None:
        self.units = units


class TimedCollective:
    """What FSDP2 calls to gather parameters or to reduce and scatter gradients: the same, timed."""

    def __init__(self, timer: Timer, device: torch.device) -> None:
        self.timer, self.device = timer, device

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def timed(self, name: str, start: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> Any:
        """The work of a collective, whose end a recorded step waits for."""
        with self.timer.phase(name, self.device):
            work = start(*tensors, **options)
            if self.timer.is_recording and work is not None:
                work.wait()
        return work


class AllGather(TimedCollective):
    """The shards of all ranks as full parameters, before a forward and again before a backward."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options: Any) -> Any:
        is_backward = torch._C._current_graph_task_id() != -1
        name = "backward all-gather" if is_backward else "all-gather"
        return self.timed(name, _collective("all_gather"), output_tensor, input_tensor, **options)


class ReduceScatter(TimedCollective):
    """The mean of the gradients of all ranks, of which each gets its shard."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options: Any) -> Any:
        start = _collective("reduce_scatter")
        return self.timed("reduce-scatter", start, output_tensor, input_tensor, **options)


def _collective(name: str) -> Callable[..., Any]:
    """The collective of one tensor, which torch 2.13 has renamed."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[name]
    found: Callable[..., Any] = getattr(torch.distributed, f"{name}_single", None) or getattr(
        torch.distributed, older
    )
    return found


class _RefusesGradients(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators that autograd runs inside raise ConfigError, however it was called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() != -1:
            raise ConfigError(
                "fsdp frees the weights of a block after its forward, and this forward computes gradients "
                "(torch.autograd.grad, say), which needs them again: use ddp, which keeps them"
            )
        return func(*args, **(kwargs or {}))


class Fsdp(Strategy):
    """Each block is gathered and freed by itself; the parameters outside of blocks belong to the root."""

    needs = Needs(devices=False)
    options: FsdpOptions

    def blocks(self, model: nn.Module) -> list[str]:
        """The names of the submodules to shard. Raises ConfigError for one that the model does not have.

        A child that changes its input in place is left to the root, since FSDP2 refuses that of a block.
        """
        names = matching(model, self.options.block, "--block") if list(model.children()) else ()
        blocks = {name: model.get_submodule(name) for name in names}
        is_named = self.options.block != FsdpOptions.block
        return [
            name
            for name, each in blocks.items()
            if list(each.parameters()) and (is_named or not _begins_in_place(each))
        ]

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        self.blocks(model)
        check_no_hooks(model, "fsdp")
        scalars = [name for name, each in model.named_parameters() if not (is_lazy(each) or each.dim())]
        if scalars:
            raise ConfigError(
                f"fsdp splits parameters by their rows, and {listed(scalars)} is a scalar: make it a vector "
                "of one number (torch.ones(1)), or use ddp"
            )
        names = [
            name for name, each in model.named_modules() if isinstance(each, EmbeddingTable) and each.sparse
        ]
        if names and self.trains:
            raise ConfigError(
                f"fsdp reduces and scatters dense gradients, and those of {listed(names)} are sparse: "
                "make them with sparse=False, or use ddp, or hybrid with --sparse --shard-embedding"
            )

    @contextmanager
    def trying(self, model: nn.Module, devices: Devices) -> Iterator[None]:
        with _RefusesGradients():  # type: ignore[no-untyped-call]
            yield

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        from torch.distributed.fsdp import (
            FSDPModule,
            fully_shard,
        )  # half a second, which a launcher need not wait

        device = devices[0] if devices else HOST
        blocks = self.blocks(model)
        place(model, device)
        groups = groups_of_tied(model, blocks)
        units = units_of(model, groups)
        mesh = self.group.device_mesh(device)
        if mesh is not None:
            for together in groups:
                fully_shard(together, mesh=mesh, reshard_after_forward=True)
            fully_shard(model, mesh=mesh, reshard_after_forward=True)
            gather: Any = AllGather(timer, device)
            reduce: Any = ReduceScatter(timer, device)
            for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
                module.set_custom_all_gather(gather)
                module.set_custom_reduce_scatter(reduce)
        sync = RowWeightedSync(self.group.dp_size)
        return Placed(model, device, device, (device,), sync, UnitShards(units), timer=timer)


def _begins_in_place(block: nn.Module) -> bool:
    """Whether the first layer of a block works in place: that of ``Sequential(Dropout(inplace=True), …)``."""
    while isinstance(block, nn.Sequential) and len(block):
        block = next((each for each in block if not isinstance(each, nn.Flatten | nn.Identity)), block[0])
    return bool(getattr(block, "inplace", False))


def units_of(model: nn.Module, groups: Sequence[Sequence[nn.Module]]) -> dict[str, str]:
    """{parameter: the block it is gathered with}; tied ones as ``a, b``, and empty for the root."""
    names = {module: name for name, module in model.named_modules()}
    found: dict[nn.Parameter, str] = {}
    for group in groups:
        unit = ", ".join(names[module] for module in group)
        found |= {each: unit for module in group for each in module.parameters() if each not in found}
    return {name: found.get(each, "") for name, each in model.named_parameters()}


def groups_of_tied(model: nn.Module, blocks: Sequence[str]) -> list[list[nn.Module]]:
    """The blocks, each in a list with those that share a parameter with it, as FSDP2 wants tied modules.

    A block that shares a parameter with the rest of the model is left to it.
    """
    modules = [model.get_submodule(name) for name in blocks]
    inside = {each for module in modules for each in module.modules()}
    rest = {
        parameter
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }
    groups: list[tuple[list[nn.Module], set[nn.Parameter]]] = []
    for module in modules:
        parameters = set(module.parameters())
        tied = [group for group in groups if group[1] & parameters]
        groups = [group for group in groups if group not in tied]
        together = [each for group in tied for each in group[0]]
        groups.append(([*together, module], parameters.union(*(group[1] for group in tied))))
    return [group for group, parameters in groups if not parameters & rest]


class OneDeviceBatchNorm(_BatchNorm):
    """Takes inputs of any number of dimensions, as SyncBatchNorm does."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")


def synchronized(model: nn.Module) -> list[str]:
    """The names of the modules that compute statistics over all ranks."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)]


def check_sync_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Raises ConfigError for a model with SyncBatchNorm whose ranks compute on the host."""
    names = synchronized(model)
    if names and distributed.is_initialized() and physical(device) == HOST:
        raise ConfigError(
            f"SyncBatchNorm ({listed(names)}) computes on accelerators only, and the ranks are on the host: "
            "use nn.BatchNorm, of which each rank has the statistics of its rows"
        )


def on_one_device(model: nn.Module) -> nn.Module:
    """The model, whose SyncBatchNorm knows no other ranks."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            cast(Any, module).__class__ = OneDeviceBatchNorm
    return model


@contextmanager
def without_ranks(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as on one device."""
    found = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    on_one_device(model)
    try:
        yield
    finally:
        for module in found:
            cast(Any, module).__class__ = nn.SyncBatchNorm
