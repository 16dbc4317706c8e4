"""Chunks: a single device that computes the rows of a batch as replicas and ranks do, chunk after chunk.

    rows 0..9 -- chunk 0 -- forward, from the buffers before the step  -->  its buffers are kept
              -- chunk 1 -- forward, from the buffers before the step  -->  its buffers are lost
    outputs of all chunks, joined -- loss -- backward, of the last chunk first

A layer that is checkpointed computes again in the backward, and finds the buffers of its chunk there.
Frozen parameters, to which a forward may write an average of others, are as before the step for each, too.

So a batch norm in training mode normalizes with the rows of its chunk, and dropout draws the masks of its
chunk: what PyTorch's DataParallel and DistributedDataParallel define.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.data_parallel import DataParallel
from dpexp.strategies.modules import Wrapper, named_buffers, parts
from dpexp.strategies.placed import Placed

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""The buffers of batch norms, of which PyTorch keeps those of replica 0 or of each rank."""

INNER = 1 << 12
"""Chunks inside of a chunk are numbered from so many times its number."""


class Chunked(Wrapper):
    """Computes ``module`` on the rows of ``count`` chunks, split as ``Tensor.chunk`` splits them.

    ``before(chunk)`` is called before each: it may set random states. ``buffers_after`` has the buffers by
    name after each chunk of the latest forward.
    """

    def __init__(
        self, module: nn.Module, count: int, before: Callable[[int], object] = lambda chunk: None
    ) -> None:
        super().__init__()
        self.module, self.count, self._before = module, count, before
        self.buffers_after: list[dict[str, torch.Tensor]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of all chunks: ``(rows, …)``, and a vector where a chunk has a scalar."""
        original, outputs = _buffers(self.module), []
        frozen = [(each, each.clone()) for each in self.module.parameters() if not each.requires_grad]
        self.buffers_after = []
        for chunk, (own_args, own_kwargs) in enumerate(self._split(args, kwargs)):
            _set_buffers({place: buffer.clone() for place, buffer in original.items()})
            for parameter, before in frozen if chunk else ():  # a forward may write averages to them
                if not torch.equal(parameter, before):
                    parameter.copy_(before)
            self._before(chunk)
            with self._numbered(chunk):
                outputs.append(self.module(*own_args, **own_kwargs))
            self.buffers_after.append(named_buffers(self))
            own = _buffers(self.module)
            computed: list[Any] = [each for each in tensors.walk(outputs[-1]) if each.requires_grad]
            for output in computed:
                output.register_hook(partial(_set_buffers, own))
            if chunk == 0:
                kept = own
        _set_buffers(kept)
        return outputs[0] if len(outputs) == 1 else tensors.concatenated(outputs)

    def _split(self, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        rows = next((len(tensor) for tensor in tensors.walk((args, kwargs)) if tensor.dim()), 1)
        for piece in torch.arange(rows).chunk(self.count):
            yield tensors.map_tensors(partial(_rows, piece), (args, kwargs))

    def _numbered(self, chunk: int) -> AbstractContextManager[None]:
        """Calls inside are those of this replica, as far as a recorder can see."""
        if self.count == 1:
            return nullcontext()
        outer = devices.current_device()[1]
        return devices.running_on(devices.HOST, chunk if outer is None else (outer + 1) * INNER + chunk)


def _rows(chosen: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    return tensor[int(chosen[0]) : int(chosen[-1]) + 1] if len(chosen) else tensor[:0]


_Place = tuple[nn.Module, str]


def _buffers(module: nn.Module) -> dict[_Place, torch.Tensor]:
    return {
        (each, key): buffer
        for each in module.modules()
        for key, buffer in each._buffers.items()
        if buffer is not None
    }


def _set_buffers(buffers: Mapping[_Place, torch.Tensor], gradient: torch.Tensor | None = None) -> None:
    """New tensors, not new values: backward may need the old ones."""
    for (module, key), buffer in buffers.items():
        module._buffers[key] = buffer


@dataclass(frozen=True)
class Chunks:
    """How a layout splits the rows of a batch: over ``dp_size`` ranks, and within a process in ``modules``.

    ``splits``: whether it may; of a user's layout over devices it is not known. ``is_known``: whether it says
    so itself. ``draws_alike``: whether random layers draw the numbers that a single device draws for the same
    chunks. ``are_synchronized``: whether batch norms of ranks are.
    """

    dp_size: int = 1
    modules: Mapping[str, int] = field(default_factory=dict)
    is_known: bool = True
    draws_alike: bool = True
    are_synchronized: bool = False
    splits: bool = False

    @classmethod
    def of(cls, placed: Placed, group: ProcessGroup) -> Chunks:
        """Those of a placed model; every rank gets the same."""
        in_order = (
            not placed.is_opaque
            or len(placed.devices) == 1
            or any(isinstance(part, DataParallel) for part in placed.module.modules())
        )
        own = (
            split_modules(placed.module),
            placed.is_on_host and in_order and (group.size == group.dp_size or not placed.is_opaque),
            group.size > 1 and any(isinstance(part, nn.SyncBatchNorm) for part in placed.module.modules()),
        )
        modules, alike, synchronized = zip(*group.all_gather(own), strict=True)
        together = {name: count for of_rank in modules for name, count in of_rank.items()}
        splits = group.dp_size > 1 or bool(together) or (placed.is_opaque and len(placed.devices) > 1)
        return cls(group.dp_size, together, not placed.is_opaque, all(alike), any(synchronized), splits)

    def smallest(self, rows: int) -> int:
        """The rows of the smallest chunk of a batch of so many."""
        of_ranks = [len(piece) for piece in torch.arange(rows).chunk(self.dp_size)]
        return min(
            len(torch.arange(size).chunk(count)[-1])
            for size in of_ranks
            for count in (1, *self.modules.values())
        )

    def split_within(self, name: str) -> bool:
        """Whether a process splits the rows that it gives to this module."""
        return any(each in ("", name) or name.startswith(f"{each}.") for each in self.modules)

    @contextmanager
    def split(self, model: nn.Module, before: Callable[[int], object]) -> Iterator[Chunked]:
        """The model of a single device that computes these chunks; inside, parts of it are wrapped."""
        replaced = []
        for name, count in self.modules.items():
            if name:
                parent, _, key = name.rpartition(".")
                owner = model.get_submodule(parent)
                replaced.append((owner, key, owner.get_submodule(key)))
                owner._modules[key] = Chunked(owner.get_submodule(key), count)
        inner = Chunked(model, self.modules[""]) if "" in self.modules else model
        try:
            yield Chunked(inner, self.dp_size, before)
        finally:
            for owner, key, part in reversed(replaced):
                owner._modules[key] = part


def split_modules(placed: nn.Module) -> dict[str, int]:
    """The modules of a placed model whose rows are split within a process, and into how many chunks."""
    found: dict[str, int] = {}
    for part in parts(placed):
        count = len(_replica_devices(part.module))
        if count > 1:
            found.setdefault(part.name, count)
    return found


def _replica_devices(module: nn.Module) -> Any:
    if isinstance(module, Wrapper):
        return module.replica_devices
    return getattr(module, "device_ids", None) or ()
