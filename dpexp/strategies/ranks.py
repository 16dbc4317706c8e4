"""``ddp`` and ``fsdp``: one process (rank) per device, each with its own rows of every batch.

``naive.py`` has the step of ``ddp`` written out; read it first.

``ddp``: DistributedDataParallel. Each rank has the whole model, and only gradients travel, in buckets, while
backward still computes those of earlier layers.

    rank 0: rows 0-14  --> model --> loss --backward--+                +--> optimizer
                                                      |-- all-reduce --|
    rank 1: rows 15-29 --> model --> loss --backward--+   by bucket    +--> optimizer

``fsdp``: FSDP2's ``fully_shard``. Each rank has its rows of each parameter, of its gradient and of the
optimizer's state; it has the full parameters of a block only while the block computes.

    rank 0: rows 0-14  --all-gather block--> forward --free--> ... --all-gather--> backward --+
                                                                                              | reduce-scatter
    rank 1: rows 15-29 --all-gather block--> forward --free--> ... --all-gather--> backward --+

Both average gradients over ranks; ``GradientSync`` weights the loss of each. A rank without rows takes part
with weight 0.

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import DdpOptions, FsdpOptions
from dpexp.config.words import listed
from dpexp.copies import hooked_parameters
from dpexp.data.batch import Batch
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.blocks import is_called, units_of
from dpexp.strategies.modules import (
    EmbeddingTable,
    Wrapper,
    as_written,
    matching,
    named_parameters,
    wrapped_key,
)
from dpexp.strategies.placed import GradientSync, Placed, Shards
from dpexp.strategies.timed_communication import AllReduce, TimedCollective
from dpexp.timing import Timer

# --- ddp -------------------------------------------------------------------------------------------------


class Ddp(Strategy):
    """Each rank has the whole model and computes its rows; gradients are all-reduced."""

    needs = Needs(devices=False, gradients=True)
    options: DdpOptions

    def unused(self, names: Sequence[str]) -> None:
        """Raises ConfigError unless ``--find-unused``: the all-reduce would wait for their gradients."""
        if not self.options.find_unused:
            raise ConfigError(
                f"ddp: the loss does not depend on {listed(names)}: the all-reduce would wait for their "
                "gradients for ever. Freeze them (requires_grad_(False)), or use --find-unused"
            )

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """DistributedDataParallel around the model, on the device of this rank, if there is a group."""
        device = devices[0] if devices else HOST
        place(model, device)
        sync = GradientSync(self.group.dp_size)
        if distributed.is_initialized() and any(each.requires_grad for each in model.parameters()):
            if self.group.is_absent:
                model = AbsentDistributedDataParallel(model)
                sync = BucketSync(self.group.dp_size, model)
            else:
                model = TimedDistributedDataParallel(model, device, timer, self.options)
        return Placed(model, device, device, (device,), sync, timer=timer)


class TimedDistributedDataParallel(Wrapper, DistributedDataParallel):
    """``DistributedDataParallel`` with the all-reduce of each bucket timed.

    A communication hook in Python makes steps longer and cannot be removed: the first recorded step
    registers it.
    """

    transparent = True

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer, options: DdpOptions) -> None:
        super().__init__(module, bucket_cap_mb=options.bucket_mb, find_unused_parameters=options.find_unused)
        self.timer = timer
        self.device_of_rank = device
        self._hook: AllReduce | None = None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs and outputs ``(rows, …)`` of this rank."""
        if self.timer.is_recording:
            if self._hook is None:
                self._hook = AllReduce(self.device_of_rank)
                self.register_comm_hook(self._hook, AllReduce.start)
            self._hook.restart()
            self.timer.at_end(self._add_phases)
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def _add_phases(self) -> None:
        """Add the all-reduce of the step, and what of backward and of the all-reduce overlaps.

        Backward has computed all gradients when it hands over the last bucket.
        """
        backward, device = self.timer.start_ns("backward"), self.device_of_rank
        buckets = self._hook.times() if self._hook is not None else []
        if backward is None or not buckets:
            return
        first, computed = min(start for _, start, _ in buckets), max(start for _, start, _ in buckets)
        self.timer.add("backward_compute", device, backward, computed)
        self.timer.add("allreduce", device, first, max(end for *_, end in buckets))
        self.timer.add("overlap", device, first, computed)
        for index, start, end in buckets:
            self.timer.add(f"allreduce_bucket{index}", device, start, end)


class AbsentDistributedDataParallel(Wrapper):
    """What ``DistributedDataParallel`` keeps and sends, for ranks that are not there.

    Its reducer, in C++, reads numbers, and tensors without data have none. It keeps every gradient a second
    time, in buckets, and sends these; before each forward in training it sends the buffers of rank 0.
    """

    transparent = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.buckets: list[torch.Tensor] = []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs and outputs ``(rows, …)`` of this rank."""
        if not self.buckets:
            self.buckets = [torch.empty_like(each) for each in self.module.parameters() if each.requires_grad]
        if self.training and (buffers := [*self.module.buffers()]):
            group: Any = distributed.group.WORLD
            broadcast: Any = distributed._broadcast_coalesced  # type: ignore[attr-defined]
            broadcast(group, buffers, _BROADCAST_BYTES, 0)
        return self.module(*inputs, **kwargs)


_BROADCAST_BYTES = 250 * 1024 * 1024
"""The most that DistributedDataParallel broadcasts at once."""


class BucketSync(GradientSync):
    """Sends the buckets of ranks that are not there."""

    def __init__(self, dp_size: int, module: AbsentDistributedDataParallel) -> None:
        super().__init__(dp_size)
        self._module = module

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """``loss`` is a scalar."""
        super().backward(loss, batch)
        for bucket in self._module.buckets:
            distributed.all_reduce(bucket)


# --- fsdp ------------------------------------------------------------------------------------------------


class Fsdp(Strategy):
    """Each block is gathered and freed by itself; the parameters outside of blocks belong to the root."""

    needs = Needs(devices=False)
    options: FsdpOptions

    def blocks(self, model: nn.Module) -> list[str]:
        """The names of the submodules to shard. Raises ConfigError for one that the model does not have.

        The root keeps a block that shares a parameter with another module. By default it keeps a child that
        changes its input in place, too, since FSDP2 refuses that of a block.
        """
        is_named = self._names_blocks
        names = matching(model, self.options.block, "--block") if is_named else units_of(model)
        uncalled = [name for name in names if is_named and not is_called(model.get_submodule(name))]
        if uncalled:
            raise ConfigError(
                f"--block {uncalled[0]}: fsdp gathers the parameters of a block when it is called, and a "
                f"{type(model.get_submodule(uncalled[0])).__name__} is not: name the module around it"
            )
        return [
            name
            for name in names
            if _is_apart(model, name) and (is_named or _is_block(model.get_submodule(name)))
        ]

    def checkpointed(self, model: nn.Module) -> list[str]:
        """Those that ``--block`` names, if it does."""
        return self.blocks(model) if self._names_blocks else super().checkpointed(model)

    @property
    def _names_blocks(self) -> bool:
        return self.options.block != FsdpOptions.block

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Raises ConfigError for blocks, hooks, scalars and sparse tables that FSDP2 does not take."""
        self.blocks(model)
        if hooked := hooked_parameters(model):
            raise ConfigError(
                f"fsdp replaces parameters by their shards, which lose the hooks of {listed(hooked)}: "
                "remove the hooks (change the gradient in the module or the loss), or use another strategy"
            )
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
                "make them with sparse=False, or use ddp, or hybrid with --sparse"
            )

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Shard each block, and then what is left, in place."""
        from torch.distributed.fsdp import fully_shard  # half a second, which a launcher need not wait

        device = devices[0] if devices else HOST
        blocks = self.blocks(model)
        shards = Shards()
        shards.units = {
            name: next((block for block in map(as_written, blocks) if name.startswith(f"{block}.")), "")
            for name in named_parameters(model)
        }
        mesh = self.group.device_mesh(device)
        gather = TimedCollective("all-gather", timer, device)
        reduce = TimedCollective("reduce-scatter", timer, device)
        for module in [*map(model.get_submodule, blocks), model]:
            place(module, device)  # one by one, so that a device never has the full model
            if mesh is not None:
                sharded: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
                sharded.set_custom_all_gather(gather)
                sharded.set_custom_reduce_scatter(reduce)
        sync = GradientSync(self.group.dp_size)
        return Sharded(model, device, device, (device,), sync, shards, timer=timer)


def _is_apart(model: nn.Module, name: str) -> bool:
    own = set(model.get_submodule(name).parameters())
    named = model.named_parameters(remove_duplicate=False)
    return bool(own) and all(key.startswith(f"{name}.") for key, each in named if each in own)


def _is_block(block: nn.Module) -> bool:
    """Whether FSDP2 takes it: it is called, and does not begin in place.

    The first layer of ``Sequential(Dropout(inplace=True), …)`` does.
    """
    if not is_called(block):
        return False
    while key := wrapped_key(block):
        block = block.get_submodule(key)
    while isinstance(block, nn.Sequential) and len(block):
        block = next((each for each in block if not isinstance(each, nn.Flatten | nn.Identity)), block[0])
    return not getattr(block, "inplace", False)


_FREED = (
    "fsdp frees the parameters of a block after its forward, and something needs them before its backward: a "
    "forward that computes gradients itself (torch.autograd.grad), say: use ddp, which keeps them"
)
_FSDP_ERRORS = {
    "storage of size 0": _FREED,
    "appears to not have been used in the graph": _FREED,
    "mixed torch.Tensor and DTensor": (
        "fsdp gathers the parameters of a block when the block is called, and something reads them without a "
        "call (functional.linear(x, self.fc.weight), checkpoint_sequential or a loss): name modules that the "
        "forward calls with --block, or use ddp"
    ),
}
"""What the errors of PyTorch mean whose text has this."""


class Sharded(Placed):
    """A model whose blocks have their parameters inside of their forward and backward only."""

    def step(self, *args: Any, **options: Any) -> torch.Tensor:
        """A scalar, as of ``Placed.step``. Raises RuntimeError that says what an error of FSDP2 means."""
        try:
            return super().step(*args, **options)
        except RuntimeError as error:
            meaning = next((text for part, text in _FSDP_ERRORS.items() if part in str(error)), "")
            if not meaning:
                raise
            raise RuntimeError(meaning) from error
