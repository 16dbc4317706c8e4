"""Live storages: what the operators of a step make, in bytes, from the making of each storage to its end.

::

    forward   make ──────┬──── saved for backward ─────┐
              temporary ─┴─ end                        │ backward
    activations: the most bytes at once in forward     └─ end

A dispatch mode sees every operator of forward and backward, recomputation included. It keeps weak references
only, so that every storage ends when it would without it. What an operator uses inside itself is not seen.

The mode also adds up the floating-point operations of products of matrices, convolutions and attention
(``flops``). PyTorch's ``FlopCounterMode`` would keep gradients.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from dpexp import tensors
from dpexp.devices import HOST, current_device, label, placed_on
from dpexp.measurement.flops import flops_of
from dpexp.parallel.data_parallel import DataParallel
from dpexp.strategies.modules import Wrapper

aten = torch.ops.aten
COPIES = frozenset((aten.clone, aten._to_copy, aten.copy_))
MOVES = COPIES | {aten.detach, aten.alias, aten.empty, aten.zeros, aten.ones, aten.fill_, aten.zero_}
MOVES |= {aten.empty_like, aten.zeros_like, aten.ones_like, aten.new_zeros, aten.cat, aten.stack}
"""Operators without arithmetic."""
ASIDE = frozenset(("c10d", "_c10d_functional", "fsdp", "profiler"))
"""Namespaces of operators that compute nothing; they make parameters and gradients of other ranks."""


@dataclass
class Made:
    """A storage that an operator made; it is an activation of ``device``, if it is one."""

    size: int
    device: str | None = None
    reference: weakref.ref[torch.UntypedStorage] | None = None


@dataclass(frozen=True)
class Operator:
    """What is to be known of an operator, found once: a step calls a few of them tens of thousands of times.

    ``flops`` gives those of a call, from its arguments and outputs. ``only_moves``: it has no arithmetic.
    """

    function: Any
    name: str
    flops: Callable[[Any, Any, Any], int | None]
    only_moves: bool
    is_aside: bool
    copies: bool
    is_empty: bool

    @classmethod
    def of(cls, function: Any) -> Operator:
        """Of one overload of an operator."""
        packet = getattr(function, "_overloadpacket", function)
        is_aside = getattr(function, "namespace", "") in ASIDE
        return cls(
            function,
            str(packet).removeprefix("aten."),
            flops_of(packet),
            packet in MOVES or is_aside or bool(getattr(function, "is_view", False)),
            is_aside,
            packet in COPIES,
            packet is aten.empty,
        )


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with LiveStorages(given, output_device) as live:`` counts what the operators inside make.

    ``given`` are parameters, buffers and the batch: their copies for replicas are not activations.
    All else on the CPU is on ``output_device`` if it is the only device. ``is_complete`` becomes False where
    a module ran in a thread whose operators are not seen.
    """

    supports_higher_order_operators = True

    def __init__(self, given: Iterable[torch.Tensor], output_device: torch.device, is_only: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {each._cdata for tensor in given for each in storages(tensor)}
        self._output_device, self._is_only = output_device, is_only
        self._operators: dict[int, Operator] = {}
        self._live: dict[int, Made] = {}
        self._empty: dict[int, str] = {}
        """The devices of storages without contents: for activations, or for what other ranks send."""
        self._modules: list[tuple[torch.device, bool]] = []
        """(device, whether it is a wrapper) of each module that is being called, outermost first."""
        self._hooks = ExitStack()
        self._now: Counter[str] = Counter()
        self._active: Counter[str | None] = Counter()
        self.peak: Counter[str] = Counter()
        """The most bytes at once, by physical device: virtual devices are the host's."""
        self.activations: Counter[str] = Counter()
        """The most bytes at once without copies of what was given, by device."""
        self.flops = 0
        self.not_counted: set[str] = set()
        """The operators, other than copies and views, for which there is no formula."""
        self.is_complete = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: else the first operator imports ``torch._dynamo``, which takes 0.7 s."""
        return False

    def __enter__(self) -> LiveStorages:
        hooks: Any = nn.modules.module
        self._hooks.callback(hooks.register_module_forward_pre_hook(self._enter).remove)
        self._hooks.callback(hooks.register_module_forward_hook(self._leave, always_call=True).remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def held(self) -> int:
        """The bytes that are held now, on all devices."""
        return self._now.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a DTensor: its operators on local tensors come next
        kwargs = kwargs or {}
        before = {each._cdata for tensor in _found((args, kwargs)) for each in storages(tensor)}
        outputs = func(*args, **kwargs)
        operator = self._operators.get(id(func))
        if operator is None:
            operator = self._operators[id(func)] = Operator.of(func)
        returned = _found(outputs)
        if not any(tensor.is_meta for tensor in returned):  # there only shapes are computed
            flops = operator.flops(args, kwargs, outputs)
            self.flops += flops or 0
            if flops is None and not operator.only_moves:
                self.not_counted.add(operator.name)
        if self._empty:
            self._fill(before, operator.is_aside)
        is_copy = operator.copies and not before.isdisjoint(self._given) and self._is_between_modules()
        for tensor in returned:
            for storage in storages(tensor):
                if storage._cdata not in before and storage._cdata not in self._live:
                    made = self._add(storage, label(tensor.device))
                    if operator.is_empty:
                        self._empty[storage._cdata] = self._device(tensor)
                    elif not (is_copy or operator.is_aside):
                        self._activate(made, self._device(tensor))
        return outputs

    def _fill(self, keys: set[int], is_aside: bool) -> None:
        """The storages without contents among an operator's inputs: activations, unless it is aside."""
        for key in keys & self._empty.keys():
            device = self._empty.pop(key)
            if not is_aside:
                self._activate(self._live[key], device)

    def _add(self, storage: torch.UntypedStorage, physical: str) -> Made:
        key, made = storage._cdata, Made(storage.nbytes())

        def end(_: Any) -> None:
            del self._live[key]
            self._empty.pop(key, None)
            self._now[physical] -= made.size
            self._active[made.device] -= made.size

        made.reference = weakref.ref(storage, end)
        self._live[key] = made
        self._now[physical] += made.size
        self.peak[physical] = max(self.peak[physical], self._now[physical])
        return made

    def _activate(self, made: Made, device: str) -> None:
        """Count a storage among the activations of the device."""
        made.device = device
        self._active[device] += made.size
        self.activations[device] = max(self.activations[device], self._active[device])

    def _device(self, tensor: torch.Tensor) -> str:
        """The device of a new tensor: of a CPU tensor that of its replica, or of the module being called."""
        if tensor.device != HOST or self._is_only:
            return label(self._output_device if tensor.device == HOST else tensor.device)
        inside = self._modules[-1][0] if self._modules else self._output_device
        return label(current_device()[0] or inside)

    def _is_between_modules(self) -> bool:
        """Whether no module of the model is being called: a strategy moves or copies tensors."""
        return current_device()[1] is None and (not self._modules or self._modules[-1][1])

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            self.is_complete = False
        is_wrapper = isinstance(module, Wrapper | DataParallel)
        inherited = self._modules[-1][0] if self._modules else self._output_device
        self._modules.append((inherited if is_wrapper else placed_on(module), is_wrapper))

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        self._modules.pop()


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor: several of a sparse one, this rank's of a DTensor."""
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:  # nearly all are
        return [tensor.untyped_storage()]
    return [part.untyped_storage() for part in dense_parts(tensor) if part.layout is torch.strided]


_PLAIN, _NUMBERS = (torch.Tensor, nn.Parameter), (int, float, bool, type(None))


def _found(value: Any) -> list[torch.Tensor]:
    """Every tensor of what an operator gets or returns."""
    if type(value) in _PLAIN:
        return [value]
    if type(value) in (tuple, list):
        return [tensor for entry in value for tensor in _found(entry)]
    return [] if type(value) in _NUMBERS else list(tensors.walk(value))


def dense_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the numbers of a tensor: indices and values, or this rank's shard."""
    sparse: Any = tensor
    if is_traceable_wrapper_subclass(tensor):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        for part in tensors.walk(inner):  # a DTensor has its mesh there, too
            yield from dense_parts(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (sparse._indices(), sparse._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (sparse.crow_indices(), sparse.col_indices(), sparse.values())
    else:
        yield tensor


def storage_size(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's numbers on this rank."""
    return sum(part.numel() * part.element_size() for part in dense_parts(tensor))
