"""Devices: real and virtual ones, placement and moves, random number generators, memory.

Every difference between kinds of devices lives in this file. A *virtual device* is
``torch.device("cpu", i)``: the CPU computes the numbers, the device is a label. PyTorch drops the index
from a CPU tensor, so that a tensor cannot name its virtual device. Three others can:

* the thread: a replica runs inside ``running_on(device, replica)``, and ``current_device()`` returns both;
* the module: ``place(module, device)`` labels each submodule, and ``placed_on(module)`` returns the label;
* a tensor between two modules: ``set_tensor_device`` labels it, and ``tensor_device`` returns the label.
"""

import resource
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import MAX_VIRTUAL

HOST = torch.device("cpu")
_LABEL = "_dpexp_device"

_M = TypeVar("_M", bound=nn.Module)


class _ThreadState(threading.local):
    device: torch.device | None = None
    replica: int | None = None
    predicts = False
    places = True


_thread = _ThreadState()


def accelerators() -> list[torch.device]:
    """Every accelerator of this machine, as ``cuda:0, cuda:1, …`` (or ``mps:0``); empty without one."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def virtual(count: int) -> list[torch.device]:
    """``cpu:0 … cpu:count-1``: devices emulated on the CPU. Raises ConfigError above ``MAX_VIRTUAL``."""
    if count > MAX_VIRTUAL:
        raise ConfigError(f"{count} devices or ranks on the CPU: there are at most {MAX_VIRTUAL}")
    return [torch.device("cpu", index) for index in range(count)]


def is_virtual(device: torch.device) -> bool:
    """True for ``cpu:i``, False for the host ``cpu`` and for real accelerators."""
    return device.type == "cpu" and device.index is not None


def physical(device: torch.device) -> torch.device:
    """The device that stores the bytes: the host for a virtual device, otherwise the device itself.

    Inside ``prediction()``, where tensors are fake and have no bytes, a virtual device stays itself.
    """
    return HOST if device.type == "cpu" and not _thread.predicts else device


def label(device: torch.device) -> str:
    """The device's name in Records: ``cpu`` (the host), ``cpu:3`` (virtual), ``cuda:1``."""
    return str(device)


# --- the device of a thread ----------------------------------------------------------------------


class running_on:
    """``with running_on(device, replica):`` this thread computes replica ``replica`` on ``device``.

    A label only: it moves nothing and does not set the current CUDA device. Nests; threads are independent.
    """

    __slots__ = ("_inside", "_outside")

    def __init__(self, device: torch.device, replica: int | None = None) -> None:
        self._inside = (device, replica)

    def __enter__(self) -> None:
        self._outside = current_device()
        _thread.device, _thread.replica = self._inside

    def __exit__(self, *exception: object) -> None:
        _thread.device, _thread.replica = self._outside


def current_device() -> tuple[torch.device | None, int | None]:
    """(device, replica) of this thread; (None, None) outside of every replica."""
    return _thread.device, _thread.replica


@contextmanager
def prediction() -> Iterator[None]:
    """Inside, this thread lays out fake tensors, which keep the index of their virtual device."""
    before, _thread.predicts = _thread.predicts, True
    try:
        yield
    finally:
        _thread.predicts = before


@contextmanager
def labels_only() -> Iterator[None]:
    """Inside, ``place`` moves nothing: this thread lays out tensors of the device ``meta``."""
    before, _thread.places = _thread.places, False
    try:
        yield
    finally:
        _thread.places = before


# --- the device of modules and tensors -----------------------------------------------------------


def place(module: _M, device: torch.device) -> _M:
    """Move the module to the device, in place, and label each submodule with it. Returns the module."""
    if _thread.predicts:
        _replace_fake_tensors(module, device)
    elif _thread.places:
        module.to(physical(device))
    for part in module.modules():
        part.__dict__[_LABEL] = device
    return module


def _replace_fake_tensors(module: nn.Module, device: torch.device) -> None:
    """Parameters without data cannot be moved in place: fake ones replace them; tied ones stay tied."""
    replaced: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    new = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, nn.Parameter):
                        new = nn.Parameter(new, tensor.requires_grad)
                    table[key] = replaced.setdefault(id(tensor), new)  # type: ignore[assignment]


def placed_on(module: nn.Module) -> torch.device:
    """The device that the module was last placed on; the host if it was never placed."""
    device: torch.device = module.__dict__.get(_LABEL, HOST)
    return device


def set_tensor_device(value: Any, device: torch.device) -> Any:
    """The pytree, its tensors labelled with their device for ``tensor_device``."""
    for tensor in tensors.walk(value):
        tensor.__dict__[_LABEL] = device
    return value


def tensor_device(tensor: torch.Tensor, default: torch.device) -> torch.device:
    """The device of a tensor (…); for a CPU tensor the virtual device of its label, else ``default``."""
    if tensor.device != HOST or _thread.predicts:
        return tensor.device
    device: torch.device = tensor.__dict__.get(_LABEL, default)
    return device


def move(value: Any, device: torch.device) -> Any:
    """The pytree with every tensor on the device; tensors that are there already are not copied."""
    if isinstance(value, PackedSequence):  # its batch sizes stay on the host
        return value.to(physical(device), non_blocking=device.type != "cpu")  # type: ignore[arg-type]
    return tensors.map_tensors(lambda tensor: non_blocking_to(tensor, device), value)


def non_blocking_to(tensor: torch.Tensor, device: torch.device, copy: bool = False) -> torch.Tensor:
    """``Tensor.to`` (…) that does not wait, except for a copy to the host, which could be read too early."""
    destination = physical(device)
    if tensor.device == destination:  # Tensor.to does the same, and takes twice the time
        return tensor.clone() if copy else tensor
    return tensor.to(destination, non_blocking=device.type != "cpu", copy=copy)


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[Any]:
    """Mixed precision for forwards on this kind of device; does nothing where ``dtype`` is empty."""
    return torch.autocast(device.type, dtype=getattr(torch, dtype)) if dtype else nullcontext()


def is_autocast_enabled(kind: str) -> bool:
    """Whether this thread computes under autocast on devices of this kind."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


# --- random number generators, queues and memory -------------------------------------------------


@contextmanager
def without_tf32() -> Iterator[None]:
    """CUDA computes float32 products in float32 here, not in TF32, which has ten bits.

    PyTorch has an old and a new way to choose (``allow_tf32``, ``fp32_precision``), and raises an error where
    one is read after the other was written. The old one is written first, the new one restored last.
    """
    backends: Any = torch.backends
    cudnn, matmul = backends.cudnn, backends.cuda.matmul
    places = (backends, cudnn.conv, cudnn.rnn, matmul, backends.mkldnn.matmul)
    before, of_products = [each.fp32_precision for each in places], "highest"
    with suppress(RuntimeError):  # the new way was used
        of_products = torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    backends.fp32_precision = "none"
    try:
        yield
    finally:
        cudnn.allow_tf32 = before[1] == "tf32"
        torch.set_float32_matmul_precision(of_products)
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait until every queued kernel of every device is done. The CPU has no queue."""
    for device in set(devices):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def reset_peak_memory(devices: Iterable[torch.device]) -> None:
    """Restart the peak of ``peak_memory`` on CUDA devices; a process's peak cannot be reset."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what verification reserved
            torch.cuda.reset_peak_memory_stats(device)


def allocator_peaks(device: torch.device) -> dict[str, int]:
    """Bytes that PyTorch's allocator had handed out and reserved at most, on CUDA; empty elsewhere."""
    if device.type != "cuda":
        return {}
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {"peak": allocated, "reserved": reserved}


def peak_memory(devices: Iterable[torch.device]) -> dict[str, int]:
    """Peak bytes by device: PyTorch's allocations on CUDA, the process's resident set on the host.

    Virtual devices share the host's memory and have no figure of their own.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {label(HOST): resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    found = {label(device): allocator_peaks(device) for device in sorted(set(devices), key=label)}
    return peak | {name: peaks["peak"] for name, peaks in found.items() if peaks}
