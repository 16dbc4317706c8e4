"""Devices: which there are, virtual ones, moving to them, their names, clocks and memory.

Every difference between kinds of device lives in this file. A *virtual device* is
``torch.device("cpu", i)``: a label of its own, while the numbers are computed by the CPU. PyTorch
drops the index from a CPU tensor, so that a tensor cannot say on which virtual device it lies; two
things say it instead:

* the thread: a replica runs inside ``on(device, replica)`` and ``here()`` tells where that is;
* the module: ``place(module, device)`` marks each submodule and ``placed_on(module)`` reads the mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dpexp import tensors
from dpexp.config import ConfigError, RunConfig

HOST = torch.device("cpu")
_MARK = "_dpexp_device"

M = TypeVar("M", bound=nn.Module)


def accelerators() -> list[torch.device]:
    """Every accelerator of this machine, as ``cuda:0, cuda:1, …`` (or ``mps:0``); empty without one."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return []
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def virtual(count: int) -> list[torch.device]:
    """``cpu:0 … cpu:count-1``: devices emulated on the CPU."""
    return [torch.device("cpu", index) for index in range(count)]


def is_virtual(device: torch.device) -> bool:
    """True for ``cpu:i``, False for the host ``cpu`` and for real accelerators."""
    return device.type == "cpu" and device.index is not None


def physical(device: torch.device) -> torch.device:
    """Where the bytes of this device lie: the host for a virtual device, else itself.

    While a layout is being predicted, with fake tensors that have no bytes, a virtual device is itself.
    """
    return HOST if device.type == "cpu" and not _predicting.on else device


class _Predicting(threading.local):
    on = False


_predicting = _Predicting()


@contextmanager
def prediction() -> Iterator[None]:
    """While inside, this thread lays out fake tensors, which do know on which virtual device they are."""
    before, _predicting.on = _predicting.on, True
    try:
        yield
    finally:
        _predicting.on = before


def is_predicting() -> bool:
    """True inside ``prediction()``."""
    return _predicting.on


def label(device: torch.device) -> str:
    """The device's name in Records: ``cpu`` (the host), ``cpu:3`` (virtual), ``cuda:1``."""
    return str(device)


# --- from the command line -----------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """The devices that a run asked for and those that it will use (empty: there is none to use)."""

    requested: tuple[str, ...]
    used: tuple[torch.device, ...]

    @property
    def is_virtual(self) -> bool:
        return any(is_virtual(device) for device in self.used)


def select(config: RunConfig) -> Selection:
    """The devices of ``--devices`` or ``--virtual``.

    Raises ConfigError for devices that are not there, naming those that are.
    """
    if config.virtual is not None:
        used = virtual(config.virtual)
        return Selection(tuple(map(label, used)), tuple(used))
    text = config.devices.strip()
    present = accelerators()
    if text == "auto":
        return Selection(("auto",), tuple(present))
    if text == "cpu":
        return Selection(("cpu",), ())
    if text.isdecimal():
        return Selection((text,), tuple(_first(int(text), present)))
    used = [_named(name.strip(), present) for name in text.split(",")]
    return Selection(tuple(name.strip() for name in text.split(",")), tuple(used))


def _first(count: int, present: Sequence[torch.device]) -> Sequence[torch.device]:
    if count < 1:
        raise ConfigError(f"--devices {count}: it must be at least 1; --devices cpu uses none")
    if count > len(present):
        raise ConfigError(
            f"--devices {count}: {_there_are(present)}. --virtual {count} emulates {count} devices on the CPU"
        )
    return present[:count]


def _named(name: str, present: Sequence[torch.device]) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"--devices '{name}': it is auto, cpu, a number, or names as cuda:0,cuda:1"
        ) from None
    if device.type == "cpu":
        raise ConfigError(
            f"--devices '{name}': for emulated devices say --virtual N; for the host alone, cpu"
        )
    if device.index is None:
        device = torch.device(device.type, 0)
    if device not in present:
        raise ConfigError(
            f"--devices '{name}': {_there_are(present)}. --virtual N emulates N devices on the CPU"
        )
    return device


def _there_are(present: Sequence[torch.device]) -> str:
    names = ", ".join(map(label, present))
    return (
        f"this machine has {len(present)} accelerators ({names})"
        if present
        else "this machine has no accelerator"
    )


# --- where a thread is ---------------------------------------------------------------------------


class _Here(threading.local):
    device: torch.device | None = None
    replica: int | None = None


_here = _Here()


class on:
    """``with on(device, replica):`` this thread computes replica ``replica`` on ``device``.

    A label only: it moves nothing and sets no current CUDA device. Nests; threads are independent.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, device: torch.device, replica: int | None = None) -> None:
        self._after = (device, replica)

    def __enter__(self) -> None:
        self._before = (_here.device, _here.replica)
        _here.device, _here.replica = self._after

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        _here.device, _here.replica = self._before


def here() -> tuple[torch.device | None, int | None]:
    """(device, replica) of this thread; (None, None) outside of every replica."""
    return _here.device, _here.replica


# --- placing and moving --------------------------------------------------------------------------


def place(module: M, device: torch.device) -> M:
    """Move the module to the device, in place, and mark each submodule with it. Returns the module."""
    if is_predicting():
        _refake(module, device)
    else:
        module.to(physical(device))
    for part in module.modules():
        part.__dict__[_MARK] = device
    return module


def _refake(module: nn.Module, device: torch.device) -> None:
    """Fake parameters cannot be moved in place: put new ones on the device; tied stay tied."""
    new: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                made = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
                part._parameters[key] = new.setdefault(id(parameter), made)  # type: ignore[assignment]
        for key, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[key] = new.setdefault(id(buffer), torch.empty_like(buffer, device=device))


def placed_on(module: nn.Module) -> torch.device:
    """The device that the module was last placed on; the host where it never was."""
    device = module.__dict__.get(_MARK, HOST)
    assert isinstance(device, torch.device)
    return device


def mark(value: Any, device: torch.device) -> Any:
    """The nested value, its tensors marked as lying on the device: see ``whereabouts``."""
    for tensor in tensors.walk(value):
        tensor.__dict__[_MARK] = device
    return value


def whereabouts(tensor: torch.Tensor, default: torch.device) -> torch.device:
    """Where a tensor lies: what it says, its mark on virtual devices, else ``default``."""
    if tensor.device != HOST or is_predicting():
        return tensor.device
    found: torch.device = tensor.__dict__.get(_MARK, default)
    return found


def move(value: Any, device: torch.device) -> Any:
    """The nested value with every tensor on the device; what is there already is not copied."""
    if isinstance(value, PackedSequence):  # its batch sizes stay on the host
        return value.to(physical(device), non_blocking=may_not_wait(device))  # type: ignore[arg-type]
    return tensors.map_tensors(
        lambda tensor: tensor.to(physical(device), non_blocking=may_not_wait(device)), value
    )


def may_not_wait(device: torch.device) -> bool:
    """Whether a copy to the device may be queued: the host would read it before it has arrived."""
    return device.type != "cpu"


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[Any]:
    """Mixed precision for forwards on this kind of device; does nothing where ``dtype`` is empty."""
    if not dtype:
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, dtype))


def random_states(devices: Iterable[torch.device]) -> list[torch.Tensor]:
    """The states of the host's generator and of the CUDA devices', in order."""
    cuda = [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"]
    return [torch.get_rng_state(), *cuda]


def set_random_states(devices: Iterable[torch.device], states: Sequence[torch.Tensor]) -> None:
    """The inverse; devices for which there is no state keep theirs."""
    torch.set_rng_state(states[0])
    cuda = [device for device in devices if device.type == "cuda"]
    for device, state in zip(cuda, states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)


# --- clocks and memory ---------------------------------------------------------------------------


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait until every queued kernel of every device is done. The CPU has no queue to wait for."""
    for device in set(devices):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def reset_peak_memory(devices: Iterable[torch.device]) -> None:
    """Start the peak of ``peak_memory`` anew on CUDA devices; a process's peak cannot be reset."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_memory(devices: Iterable[torch.device]) -> dict[str, int]:
    """Peak bytes by device: what PyTorch's allocator held on CUDA, the process's resident set on the host.

    Virtual devices share the host's memory, so that they have no figure of their own.
    """
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    peak = {label(HOST): resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    for device in sorted(set(devices), key=label):
        if device.type == "cuda":
            peak[label(device)] = torch.cuda.max_memory_allocated(device)
    return peak
