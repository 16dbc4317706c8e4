"""Hooks: what is registered around a loop while it is watched, and what leaves no trace afterwards.

of a part of the model     ``Hook``: not in a copy, nor in a file
of functions of PyTorch    ``Replaced``, for all watches at once: ``autograd.backward``, ``autograd.grad``,
                           ``GradScaler``, what clips gradients, and what asks for other ranks

A ``WatchedLoop`` is told of these. It is on from ``begin`` to ``end``.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch._compile import _disable_dynamo
from torch.nn.utils import clip_grad

from dpexp.verification.alone import asked

Function = Callable[..., Any]
WatchedLoop = Any
"""That of ``loop``, which imports this file."""


class Hook:
    """A hook of a part of the model, which a copy of it does not have. Compiled code does not call it."""

    def __init__(self, act: Function | None) -> None:
        self.act = act

    def __call__(self, *args: Any) -> None:
        if self.act is not None and not torch.compiler.is_compiling():
            self.act(*args)

    def __deepcopy__(self, memo: Any) -> Hook:
        return type(self)(None)

    def __reduce__(self) -> Any:
        return type(self), (None,)


class RootHook(Hook):
    """That of the model itself, which torch.compile leaves out of what it compiles."""

    @_disable_dynamo
    def __call__(self, *args: Any) -> None:
        if self.act is not None:
            self.act(*args)


class Replaced:
    """Functions that stand in the place of others, wherever a module has imported these, until ``remove``."""

    def __init__(self, wrappers: Mapping[Function, Function]) -> None:
        self._originals = {id(new): old for old, new in wrappers.items()}
        _exchange({id(old): new for old, new in wrappers.items()})

    def remove(self) -> None:
        """Put the originals back, also into modules that were imported in the meantime."""
        _exchange(self._originals)


def begin(watcher: WatchedLoop) -> None:
    """Tell it of PyTorch's functions from now on."""
    global _handle
    _watchers.add(watcher)
    if _handle is None:
        _handle = Replaced({old: wrap(old) for old, wrap in _WRAPPED})
        for (owner, name), wrap in _METHODS.items():
            setattr(owner, name, wrap(_ORIGINALS[owner, name]))


def end(watcher: WatchedLoop) -> None:
    """Tell it nothing more; after the last one everything is PyTorch's again."""
    global _handle
    _watchers.discard(watcher)
    if not _watchers and _handle is not None:
        _handle.remove()
        _handle = None
        for (owner, name), original in _ORIGINALS.items():
            delattr(owner, name) if original is None else setattr(owner, name, original)


_watchers: weakref.WeakSet[WatchedLoop] = weakref.WeakSet()
_handle: Replaced | None = None
_norm_type = 2.0
"""That of the latest norm of gradients."""


def _exchange(by_id: Mapping[int, Function]) -> None:
    for module in list(sys.modules.values()):
        names: Any = getattr(module, "__dict__", None)
        for key, value in list(names.items()) if isinstance(names, dict) else ():
            if id(value) in by_id:
                names[key] = by_id[id(value)]


def _getstate(original: Function | None) -> Function:
    """What is copied or saved of a module, without our hooks; of one with slots it is a tuple."""

    def getstate(module: nn.Module) -> Any:
        state: Any = original(module) if original is not None else super(nn.Module, module).__getstate__()
        return _without_hooks(dict(state)) if isinstance(state, dict) else state

    return getstate


def _without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        ours = {key for key, each in state.get(kind, {}).items() if isinstance(each, Hook)}
        for name in (kind, f"{kind}_with_kwargs", f"{kind}_always_called") if ours else ():
            if name in state:
                left = [(key, each) for key, each in state[name].items() if key not in ours]
                state[name] = type(state[name])(left)
    return state


# --- the functions ---


@contextmanager
def _around(enter: Callable[[WatchedLoop], AbstractContextManager[None]]) -> Iterator[None]:
    """What every watcher does around a call."""
    with ExitStack() as inside:
        for each in list(_watchers):
            inside.enter_context(enter(each))
        yield


def _backward(original: Function) -> Function:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = args[4] if len(args) > 4 else kwargs.get("inputs")
        with _around(lambda each: each.differentiates(tensors, inputs, is_backward=True)):
            return original(tensors, *args, **kwargs)

    return backward


def _grad(original: Function) -> Function:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _around(lambda each: each.differentiates(outputs, inputs, is_backward=False)):
            return original(outputs, inputs, *args, **kwargs)

    return grad


def _total_norm(original: Function) -> Function:
    @functools.wraps(original)
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        global _norm_type
        _norm_type = float(norm_type)
        return original(tensors, norm_type, *args, **kwargs)

    return get_total_norm


def _clip_norm(original: Function) -> Function:
    """``clip_grad_norm_`` and ``clip_grads_with_norm_`` both call it."""

    @functools.wraps(original)
    def clip(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        some = _tell_of_clipping("norm", parameters, max_norm, total_norm)
        with _around(lambda each: each.writes()):
            return original(some, max_norm, total_norm, *args, **kwargs)

    return clip


def _clip_value(original: Function) -> Function:
    @functools.wraps(original)
    def clip(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> Any:
        some = _tell_of_clipping("value", parameters, clip_value)
        with _around(lambda each: each.writes()):
            return original(some, clip_value, *args, **kwargs)

    return clip


def _tell_of_clipping(kind: str, parameters: Any, limit: float, norm: Any = None) -> list[torch.Tensor]:
    some = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    for each in list(_watchers):
        each.clips(kind, some, float(limit), norm, _norm_type)
    return some


def _scaler_step(original: Function) -> Function:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with _around(lambda each: each.scales(scaler, optimizer)):
            return original(scaler, optimizer, *args, **kwargs)

    return step


def _scaler_unscale(original: Function) -> Function:
    @functools.wraps(original)
    def unscale_(scaler: Any, optimizer: Any) -> Any:
        for each in list(_watchers):
            each.unscales(optimizer)
        with _around(lambda each: each.writes()):
            return original(scaler, optimizer)

    return unscale_


def _asks(original: Function) -> Function:
    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        asked(original.__name__)
        return original(*args, **kwargs)

    return ask


def _scaler_scale(original: Function) -> Function:
    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        for each in list(_watchers):
            each.is_scaling(scaler)
        return scaled

    return scale


_METHODS: dict[tuple[type, str], Callable[[Any], Function]] = {
    (torch.amp.GradScaler, "step"): _scaler_step,
    (torch.amp.GradScaler, "unscale_"): _scaler_unscale,
    (torch.amp.GradScaler, "scale"): _scaler_scale,
    (nn.Module, "__getstate__"): _getstate,
}
_ORIGINALS = {(owner, name): vars(owner).get(name) for owner, name in _METHODS}
"""Not every PyTorch has its own ``__getstate__`` of a module."""
_WRAPPED: list[tuple[Function, Callable[[Function], Function]]] = [
    (torch.autograd.backward, _backward),
    (torch.autograd.grad, _grad),
    (clip_grad._get_total_norm, _total_norm),
    (clip_grad._clip_grads_with_norm_, _clip_norm),
    (clip_grad.clip_grad_value_, _clip_value),
]
if distributed.is_available():
    _WRAPPED += [(distributed.get_rank, _asks), (distributed.get_world_size, _asks)]
