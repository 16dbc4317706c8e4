"""Memory: every storage that steps make, resize and free, and what the peak consists of.

    StorageLog             writes the changes down while operators run, by device and module
    StorageLog.peak        replays them: the most that there was, by kind of tensor

What a storage is may be known only later: that of a gradient is made by an operator of backward, and becomes
one when backward ends. So kinds are read at the end.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from dpexp import devices, tensors
from dpexp.measurement.step_profile import CountingMode
from dpexp.strategies.module_calls import ModuleCall

KINDS = ("parameters", "gradients", "optimizer", "activations", "gathered", "inputs", "temporaries")
"""What a plan tells apart. ``parameters`` has the buffers, too."""
_BUFFERS = {"_allgather_base_": "gathered", "_reduce_scatter_base_": "gathered", "allreduce_": "gradients"}
"""What collectives of FSDP2 and of DistributedDataParallel's reducer send."""


class Change(NamedTuple):
    """A storage has so many bytes more, or fewer, while ``module`` computes."""

    storage: int
    bytes: int
    module: str


@dataclass(frozen=True)
class Peak:
    """The most bytes that a device had at once, of each kind, and the module that computed then."""

    bytes: int
    kinds: dict[str, int]
    module: str


class StorageLog(CountingMode):  # type: ignore[no-untyped-call]
    """``with log:`` follows the storages of what operators return. ``module`` names what computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes = list[Change]()
        self.operators, self.most_operators = 0, math.inf
        self.module, self.is_updating, self.is_paused = "", False, False
        self._kinds, self._devices = dict[int, str](), dict[int, str]()
        self._alive, self._sizes = dict[int, int](), dict[int, int]()  # number by address, size by number

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The outputs of the operator, whose storages are followed from now on."""
        if self.is_updating and func is torch.ops.aten._local_scalar_dense.default:
            return _READ.get(args[0].dtype, 0.5)
        self.operators += 1
        outputs = func(*args, **kwargs)
        if self.is_paused:
            return outputs
        in_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
        kind = "temporaries" if in_backward or self.is_updating else "activations"
        sent = "gathered" if func.namespace == "fsdp" else ""
        if func.namespace == "c10d":
            sent = _BUFFERS.get(func.__name__.partition(".")[0], "")
        for tensor in tensors.walk((args, kwargs, outputs) if sent else outputs):
            self._see(tensor, sent or kind, bool(sent))
        return outputs

    def check_operators(self) -> None:
        """Raises OverflowError after too many. An operator itself cannot: PyTorch aborts in some."""
        if self.operators > self.most_operators:
            raise OverflowError("a model that computes row by row needs too many operators")

    def label(self, kind: str, value: Any) -> None:
        """The tensors of the pytree are of this kind."""
        for tensor in tensors.walk(value):
            self._see(tensor, kind, True)

    def _see(self, tensor: torch.Tensor, kind: str, is_known: bool = False) -> None:
        for part in _plain(tensor):
            storage = part.untyped_storage()
            number = self._alive.get(storage._cdata)
            if number is None:
                number = len(self._devices)
                self._alive[storage._cdata] = number
                self._devices[number] = devices.label(part.device)
                self._kinds[number] = kind
                weakref.finalize(storage, self._freed, storage._cdata, number).atexit = False
            elif is_known and (kind != "gathered" or self._kinds[number] in ("activations", "temporaries")):
                self._kinds[number] = kind
            self._resized(number, storage.nbytes())

    def _resized(self, number: int, size: int) -> None:
        if change := size - self._sizes.get(number, 0):
            self.changes.append(Change(number, change, self.module))
            self._sizes[number] = size

    def _freed(self, address: int, number: int) -> None:
        self._resized(number, 0)
        if self._alive.get(address) == number:
            del self._alive[address]

    def __enter__(self) -> StorageLog:
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:  # so FSDP2 frees what it has gathered
            found = resize(storage, size)
            if (number := self._alive.get(storage._cdata)) is not None:
                self._resized(number, size)
            return found

        self._patches = ExitStack()
        self._patches.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))
        if dtensor := sys.modules.get("torch.distributed.tensor._sharding_prop"):
            owner, name = dtensor.ShardingPropagator, "_propagate_tensor_meta_non_cached"
            self._patches.enter_context(patch.object(owner, name, self._unseen(getattr(owner, name))))
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._patches.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _unseen(self, learn: Callable[..., Any]) -> Callable[..., Any]:
        """DTensor learns the shapes of an operator by a call on full tensors without data."""

        def learn_unseen(*args: Any) -> Any:
            self.is_paused = True
            try:
                return learn(*args)
            finally:
                self.is_paused = False

        return learn_unseen

    @property
    def devices(self) -> list[str]:
        """The devices that have had storages."""
        return sorted(set(self._devices.values()))

    def peak(self, device: str, since: int = 0) -> Peak:
        """The most that there was on the device after so many changes."""
        now, most, at = 0, -1, 0
        for index, change in enumerate(self.changes):
            now += change.bytes if self._devices[change.storage] == device else 0
            if now > most and index >= since:
                most, at = now, index
        kinds = Counter[str](dict.fromkeys(KINDS, 0))
        for change in self.changes[: at + 1]:
            if self._devices[change.storage] == device:
                kinds[self._kinds[change.storage]] += change.bytes
        return Peak(most, dict(kinds), self.changes[at].module)


_READ = {torch.bool: True, torch.int32: 1, torch.int64: 1}
"""What an optimizer reads, by type, and of floats 0.5: how many steps there were, or a product of factors."""


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage that a tensor consists of: those of a DTensor, or of a sparse one."""
    if hasattr(tensor, "__tensor_flatten__"):
        inside = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        for part in tensors.walk(inside):  # a DTensor's mesh, too
            yield from _plain(part)
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif not tensor.is_meta:
        yield tensor


class ModuleTrace:
    """Tells the log which module computes, in forward and in backward: ``module_calls`` calls it."""

    def __init__(self, log: StorageLog) -> None:
        self._log, self._running = log, list[str]()

    def entered(self, call: ModuleCall) -> None:
        """A module begins its forward."""
        self._log.check_operators()
        if not self._running:
            self._log.label("inputs", call.inputs)
        self._running.append(self._log.module)
        self._log.module = call.name

    def left(self, call: ModuleCall) -> None:
        """It ends; its backward begins with the gradient of an output that no module inside it returned."""
        for tensor in tensors.walk(call.outputs):
            if tensor.grad_fn is not None and not hasattr(tensor, "_dpexp_traced"):
                tensor._dpexp_traced = True  # type: ignore[attr-defined]
                tensor.register_hook(partial(self._in_backward, call.name))  # type: ignore[no-untyped-call]
        self._log.module = self._running.pop()

    def _in_backward(self, name: str, gradient: Any) -> None:
        self._log.module = name
