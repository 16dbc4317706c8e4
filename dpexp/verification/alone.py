"""Alone: inside, this process is the only rank, as a single device is.

A model or a loss that asks ``torch.distributed`` would otherwise see all ranks on the single device's side,
too: its error would be on both sides, and cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dpexp.distributed.group import group_of

_latest: tuple[Any, Any] = (None, None)
"""The group of all ranks, and that of this rank alone."""
_asked: list[str] | None = None


class OwnGroupError(RuntimeError):
    """A collective on a group of some ranks, which a single device does not have."""


@contextmanager
def alone() -> Iterator[None]:
    """The default process group is of this rank alone. A collective on another group raises OwnGroupError."""
    world = distributed.group.WORLD if distributed.is_available() and distributed.is_initialized() else None
    if world is None or world.size() == 1:
        yield
        return
    global _latest
    if _latest[0] is not world:
        rank = distributed.get_rank()
        _latest = world, distributed.new_group([rank], backend="gloo", use_local_synchronization=True)
    single = _latest[1]
    distributed.group.WORLD = single
    try:
        with _OfOneRank(world, single):
            yield
    finally:
        distributed.group.WORLD = world


@contextmanager
def everyone() -> Iterator[None]:
    """Inside ``alone``: all ranks are there again, and no mode sees what is computed."""
    world = distributed.group.WORLD if distributed.is_available() and distributed.is_initialized() else None
    is_alone = world is not None and world is _latest[1]
    if is_alone:
        distributed.group.WORLD = _latest[0]
    try:
        with _disable_current_modes():
            yield
    finally:
        if is_alone:
            distributed.group.WORLD = world


@contextmanager
def collectives() -> Iterator[list[str]]:
    """The names of what asks for other ranks inside, alone: collectives, and what calls ``asked``."""
    global _asked
    outer, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = outer


def asked(name: str) -> None:
    """This function of torch.distributed is called: it counts where it is called alone."""
    if _asked is not None and distributed.group.WORLD is _latest[1]:
        _asked.append(name)


class _OfOneRank(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collectives on the group of all ranks, which a module may have kept, are those of this rank alone."""

    def __init__(self, world: Any, single: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._world, self._single = world, single

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            asked(func.__name__)
            args = tuple(self._replaced(func, arg) for arg in args)
        return func(*args, **(kwargs or {}))

    def _replaced(self, func: Any, arg: Any) -> Any:
        """The argument, or the group of this rank for that of all ranks."""
        group = group_of(arg)
        if group is None or group.size() == 1:
            return arg
        if group.group_name != self._world.group_name:
            raise OwnGroupError(
                f"{func.__name__} on a process group of {group.size()} ranks, which a single device does not "
                "have: use the default group in the model and the loss, or leave it to the layout"
            )
        return self._single.group_name if isinstance(arg, str) else self._single.boxed()
