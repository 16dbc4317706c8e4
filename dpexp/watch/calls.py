"""Calls: what is seen of a training loop from outside, by hooks that change none of its bits.

A call of the model, or of the loss, is kept with detached copies of its inputs, all that a single device
needs to repeat it, and the gradient that the loop brings to each of its leaves: the outputs of the model, the
arguments of the loss. A window holds the calls that a backward has reached since an optimizer stepped.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from dpexp import devices, tensors
from dpexp.config.errors import NotComparableError, describe
from dpexp.data.rng import random_state, set_random_state
from dpexp.record.journal import WATCH_STRATEGY
from dpexp.strategies.modules import named_buffers, parts
from dpexp.strategies.placed import full_output


class Autocast(NamedTuple):
    """Autocast on one kind of device."""

    kind: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, kind: str) -> Autocast:
        """As it is in this thread."""
        return cls(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    def entered(self) -> torch.autocast:
        """A context in which it is so again."""
        return torch.autocast(self.kind, self.dtype, enabled=self.enabled)


class RandomState(NamedTuple):
    """The states of the host's random number generators, and of the accelerator in use; both are copies."""

    host: bytes
    accelerator: bytes = b""

    @classmethod
    def now(cls, kind: str) -> RandomState:
        """Those of this thread's current device, where it is of this kind."""
        if kind == "cpu":
            return cls(random_state())
        module: Any = torch.get_device_module(kind)
        return cls(random_state(), module.get_rng_state().numpy().tobytes())

    def load(self, device: torch.device) -> None:
        """Restore them; the accelerator's on this device."""
        set_random_state(self.host)
        if self.accelerator:
            state = torch.frombuffer(bytearray(self.accelerator), dtype=torch.uint8)
            module: Any = torch.get_device_module(device)
            module.set_rng_state(state, device)


@dataclass(eq=False)
class LoopCall:
    """One call of the model, or of the loss: ``leaves`` are the outputs of the one, arguments of the other.

    ``inputs`` are (args, kwargs). ``gradients`` are the loop's, by the place of the leaf; without any, no
    backward has reached the call. ``factor`` says how many times as much the loop counts it as the loss of
    all rows.
    """

    inputs: Any
    order: int
    autocast: Autocast
    device: str = "cpu"
    is_replica: bool = False
    begun: float = field(default_factory=time.perf_counter)
    leaves: list[torch.Tensor] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    random: RandomState | None = None
    drawn: RandomState | None = None
    modes: dict[str, bool] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    value: torch.Tensor | None = None
    factor: float = 1.0

    def gather(self) -> None:
        """Make full tensors of what is sharded; every rank must call this for its calls in the same order."""
        those = self.inputs, self.leaves, self.value
        self.inputs, self.leaves, self.value = tensors.map_tensors(full, those)
        self.gradients = {place: full(each) for place, each in sorted(self.gradients.items())}


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of any shape, as in DTensor, detached; every rank must call this."""
    detached: Any = tensor.detach()
    return full_output(detached.full_tensor() if hasattr(detached, "placements") else detached)


def detached_copy(value: Any) -> Any:
    """The pytree with detached copies of its tensors."""
    return tensors.map_tensors(lambda each: each.detach().clone(), value)


class Hook:
    """A hook that a copy of the module, or a pickled one, does not have. torch.compile calls it untraced."""

    def __init__(self, act: Callable[..., Any] | None) -> None:
        self.act = act

    @_disable_dynamo
    def __call__(self, *args: Any) -> None:
        if self.act is not None:
            self.act(*args)

    def __deepcopy__(self, memo: Any) -> Hook:
        return Hook(None)

    def __reduce__(self) -> Any:
        return Hook, (None,)


class ObservedLoss:
    """The user's loss, which is seen when it is called; everything else of it is as it was."""

    def __init__(self, loss: Callable[..., Any], calls: LoopCalls) -> None:
        self._loss, self._calls = loss, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, (args, kwargs) = self._calls.loss_called((args, kwargs))
        value = self._loss(*args, **kwargs)
        if call is not None and isinstance(value, torch.Tensor):
            call.value = value.detach().clone()
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loss, name)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._loss, memo)

    def __reduce__(self) -> Any:
        return copy.copy, (self._loss,)


class LoopCalls:
    """The calls of ``model``, and of the loss, since an optimizer stepped.

    While ``is_paused``, and where no gradient is recorded, none is seen. Once they have ended, the next
    forward calls ``on_end``: a step of an optimizer, in which they end, cannot remove the hook that it calls.
    """

    def __init__(self, model: nn.Module, on_end: Callable[[], None], on_forward: Callable[[], None]) -> None:
        self.is_paused, self.windows, self.strategy = False, 0, WATCH_STRATEGY
        self._takes_second, self._error = False, ""
        self._model, self._on_end, self._on_forward, self._has_ended = model, on_end, on_forward, False
        self._of_model: list[LoopCall] = []
        self._of_loss: list[LoopCall] = []
        self._order, self._lock, self._thread = itertools.count(), threading.Lock(), threading.local()
        self._has_stepped = False
        self._hooks: list[Hook] = []
        self._handles: list[Any] = []

    def observe(self) -> None:
        """Register the hooks around those that the model has."""
        self._has_ended, self._takes_second, self._has_stepped = False, False, True
        model = self._model
        before, after = self._hooks = [Hook(self._safe(self._before)), Hook(self._safe(self._after))]
        self._handles = [
            model.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            model.register_forward_hook(after, with_kwargs=True),
        ]

    def end(self) -> None:
        """See nothing from now on, and forget all calls."""
        self._has_ended, self._of_model, self._of_loss = True, [], []

    def remove_hooks(self) -> None:
        """Code that was compiled with the hooks calls dead ones."""
        for hook in self._hooks:
            hook.act = None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self) -> None:
        """Raise NotComparableError for what no call of a single device repeats."""
        if self._error:
            raise NotComparableError(f"a call could not be observed: {self._error}")
        if self._takes_second:
            raise NotComparableError(
                "the loop takes a gradient of a gradient (create_graph): watch it without that term"
            )

    def end_window(self) -> None:
        """An optimizer has stepped: what the next backward reaches begins a new window."""
        self._has_stepped = True

    def drop_others(self) -> None:
        """Forget the calls that no backward has reached, as those of a validation."""
        self._of_model = [call for call in self._of_model if call.gradients]
        self._of_loss = [call for call in self._of_loss if call.gradients]

    @property
    def window(self) -> tuple[list[LoopCall], list[LoopCall]]:
        """The calls of the model and of the loss that a backward has reached, in their order."""
        both = ([call for call in calls if call.gradients] for calls in (self._of_model, self._of_loss))
        of_model, of_loss = (sorted(calls, key=lambda call: call.order) for calls in both)
        return of_model, of_loss

    @property
    def count(self) -> int:
        """How many calls of the model were seen since the window began."""
        return len(self._of_model)

    def loss_called(self, inputs: Any) -> tuple[LoopCall | None, Any]:
        """The call, and its arguments as other tensors: the loop's also get the gradient of other uses."""
        if self.is_paused or self._has_ended or not torch.is_grad_enabled():
            return None, inputs
        kind = _kind(inputs)
        call = LoopCall(detached_copy(inputs), next(self._order), Autocast.now(kind))
        inputs = tensors.map_tensors(lambda each: each.view_as(each) if each.requires_grad else each, inputs)
        self._follow(call, inputs, self._of_loss)
        return call, inputs

    def _safe(self, act: Callable[..., None]) -> Callable[..., None]:
        """What it raises is not the loop's: the next step is not comparable then."""

        def safe(*args: Any) -> None:
            try:
                act(*args)
            except Exception as error:
                self._error = self._error or describe(error)

        return safe

    def _is_seen(self, module: nn.Module) -> bool:
        is_models = module is self._model or getattr(module, "_is_replica", False)
        return is_models and not (self.is_paused or self._has_ended) and torch.is_grad_enabled()

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._has_ended:
            self._on_end()
        if not self._is_seen(module):
            return
        self._on_forward()
        self.strategy, (device, _) = _strategy_of(module), devices.current_device()
        kind = _kind((args, kwargs), module.parameters())
        call = LoopCall(detached_copy((args, kwargs)), next(self._order), Autocast.now(kind))
        call.is_replica = getattr(module, "_is_replica", False)
        inputs = (each.device for each in tensors.walk(call.inputs))
        call.device = devices.label(device or next(inputs, devices.HOST))
        call.random = RandomState.now(kind)
        call.modes = {part.name: part.module.training for part in parts(module)}
        call.buffers = {name: full(each).clone() for name, each in named_buffers(module).items()}
        self._thread.call = call
        if "forward" in vars(module) and len(self._handles) == 2:  # Accelerate's enters autocast there
            inside = [part for part in module.modules() if part._parameters]
            self._handles += [each.register_forward_pre_hook(Hook(self._before_inside)) for each in inside]

    def _before_inside(self, *_: Any) -> None:
        call = getattr(self._thread, "call", None)
        if call is not None and torch.is_autocast_enabled(call.autocast.kind):
            call.autocast = Autocast.now(call.autocast.kind)

    def _after(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        call, self._thread.call = getattr(self._thread, "call", None), None
        if call is not None and self._is_seen(module):
            call.leaves = [each.detach().clone() for each in tensors.walk(outputs)]
            call.drawn = RandomState.now(call.autocast.kind)
            self._follow(call, outputs, self._of_model)

    def _follow(self, call: LoopCall, tree: Any, calls: list[LoopCall]) -> None:
        leaves, known = list(tensors.walk(tree)), set[int]()
        call.wanted = [each.requires_grad for each in leaves]
        for place, each in enumerate(leaves):
            if each.requires_grad and id(each) not in known:
                known.add(id(each))
                each.register_hook(partial(self._safe(self._reach), call, place))  # type: ignore[no-untyped-call]
        with self._lock:
            calls.append(call)

    def _reach(self, call: LoopCall, place: int, gradient: torch.Tensor) -> None:
        if self.is_paused or self._has_ended:
            return
        with self._lock:
            if self._has_stepped:  # what the optimizer has used up is not part of this step
                self._of_model = [each for each in self._of_model if not each.gradients]
                self._of_loss = [each for each in self._of_loss if not each.gradients]
                self._has_stepped = False
                self.windows += 1
            self._takes_second |= torch.is_grad_enabled()
            known = call.gradients.get(place)
            found = gradient.detach()
            call.gradients[place] = found.clone() if known is None else known + found


def _strategy_of(module: nn.Module) -> str:
    """The strategy whose wrapper is calling the module, where that is plain, or else ``watch``."""
    if getattr(module, "_is_replica", False):
        return "whole"
    if hasattr(module, "_get_fsdp_state"):
        return "fsdp"
    is_in_ddp = getattr(DistributedDataParallel, "_active_ddp_module", None) is not None
    return "ddp" if is_in_ddp else WATCH_STRATEGY


def _kind(inputs: Any, parameters: Iterable[torch.Tensor] = ()) -> str:
    """The kind of accelerator that computes with these; ``cpu`` without one."""
    kinds = {each.device.type for each in (*tensors.walk(inputs), *parameters)}
    return next(iter(sorted(kinds - {"cpu", "meta"})), "cpu")
