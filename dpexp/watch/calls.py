"""Calls: what is seen of a training loop from outside, by hooks that change none of its bits.

A call of the model, or of the loss, is kept with detached copies of its inputs, all that a single device
needs to repeat it, and the gradient that the loop brings to each of its leaves: the outputs of the model, the
arguments of the loss. A window holds the calls that a backward has reached since an optimizer stepped.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpexp import devices, tensors
from dpexp.config.errors import NotComparableError, describe
from dpexp.record.journal import WATCH_STRATEGY
from dpexp.strategies.modules import child_name, named_parameters, parts
from dpexp.strategies.placed import full_output
from dpexp.watch.clones import Clones
from dpexp.watch.graph import Walk, edges, mark, marked, modules_in, new_in, walk
from dpexp.watch.hooks import Hook, RootHook
from dpexp.watch.state import RandomState, State

NOT_OF_PROGRAM = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
DEPTH = 30
"""So many functions that call each other tell where in the program a loss is called."""


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


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a part of the model, or of a loss, as observed.

    ``before`` it the part had this state, and after it the random numbers ``drawn``; ``leaves`` are its
    outputs, and what it has left in attributes at the paths ``left``. Those of a loss are its arguments, and
    ``place`` says from where in the program it is called. ``gradients`` are the loop's, by the place of the
    leaf; without any, no backward has reached the call. ``backward`` is the number of the pass that reached
    it first, ``losses`` are the places of the losses that lead to it, in the same window. Of a loss that is
    not the whole one the loop may differentiate any multiple: ``coefficient`` is that, where it is known.
    """

    part: str
    inputs: Any
    order: int
    autocast: Autocast
    device: str = "cpu"
    is_replica: bool = False
    begun: float = 0.0
    leaves: Sequence[torch.Tensor] = ()
    left: Sequence[str] = ()
    wanted: Sequence[bool] = ()
    gradients: Mapping[int, torch.Tensor] = field(default_factory=dict)
    takes_inputs: bool = False
    feeds_back: bool = False
    before: State | None = None
    drawn: RandomState | None = None
    function: Callable[..., Any] | None = None
    place: tuple[int, int] = (0, 0)
    is_whole: bool = True
    coefficient: float | None = None
    value: torch.Tensor | None = None
    backward: int = 0
    losses: Sequence[int] = ()

    def gathered(self) -> Call:
        """With full tensors for what is sharded; every rank must call this for its calls in order."""
        inputs, leaves, value = tensors.map_tensors(full, (self.inputs, tuple(self.leaves), self.value))
        gradients = {place: full(each) for place, each in sorted(self.gradients.items())}
        return replace(self, inputs=inputs, leaves=leaves, value=value, gradients=gradients)


@dataclass(frozen=True, eq=False)
class Penalty:
    """The gradients by parameter that a backward pass brought to parameters directly, through no call."""

    gradients: Mapping[str, torch.Tensor]
    backward: int


@dataclass(frozen=True)
class Window:
    """What backward passes have reached since an optimizer stepped: ``calls`` of the model, and ``losses``,
    in their order, and ``penalties``.
    """

    calls: Sequence[Call] = ()
    losses: Sequence[Call] = ()
    penalties: Sequence[Penalty] = ()

    def gathered(self) -> Window:
        """With full tensors; every rank must call this."""
        calls, losses = ([each.gathered() for each in some] for some in (self.calls, self.losses))
        penalties = [
            replace(each, gradients={name: full(value) for name, value in sorted(each.gradients.items())})
            for each in self.penalties
        ]
        return Window(calls, losses, penalties)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of any shape, as in DTensor, detached; every rank must call this."""
    detached: Any = tensor.detach()
    return full_output(detached.full_tensor() if hasattr(detached, "placements") else detached)


def detached_copy(value: Any) -> Any:
    """The pytree with detached copies of its tensors."""
    return tensors.map_tensors(lambda each: each.detach().clone(), value)


class ObservedLoss:
    """A loss, which is seen when it is called; everything else of it is as it was."""

    def __init__(self, loss: Callable[..., Any], calls: LoopCalls, is_whole: bool = True) -> None:
        self._loss, self._calls, self._is_whole = loss, calls, is_whole

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seen, (args, kwargs) = self._calls.loss_called(self._loss, (args, kwargs))
        value = self._loss(*args, **kwargs)
        if seen is not None and isinstance(value, torch.Tensor):
            seen.call = replace(seen.call, value=value.detach().clone(), is_whole=self._is_whole)
            if not self._is_whole:
                self._calls.mark_end(seen, [value])
        return value

    def seen(self, *args: Any, **kwargs: Any) -> Any:
        """(args, kwargs) that the caller must go on with, who calls the loss itself."""
        return self._calls.loss_called(self._loss, (args, kwargs))[1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loss, name)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._loss, memo)

    def __reduce__(self) -> Any:
        return copy.copy, (self._loss,)


@dataclass(eq=False)
class _Seen:
    """A call, and what backward passes have brought to it so far."""

    call: Call
    span: range = range(0)
    sources: Sequence[tuple[Any, int]] = ()
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    backward: int = 0
    losses: set[_Seen] = field(default_factory=set)


class _Thread(threading.local):
    """How many calls are under way in a thread, and the outermost one, if it is seen."""

    depth = 0
    seen: _Seen | None = None


class LoopCalls:
    """The calls of ``model``, or of its parts, and of losses, since an optimizer stepped.

    While ``is_paused``, and where no gradient is recorded, none is seen. Once they have ended, the next
    forward calls ``on_end``: a step of an optimizer, in which they end, cannot remove the hook that it calls.
    """

    def __init__(self, model: nn.Module, on_end: Callable[[], None], on_forward: Callable[[], None]) -> None:
        self.is_paused, self.windows, self.strategy = False, 0, WATCH_STRATEGY
        self.passes = 0
        """How many backward passes there were in this window."""
        self._noted: Sequence[Any] = ()
        self.is_by_grad = self.is_edited = self.was_clipped = False
        self.hook = ""
        self._model, self._on_end, self._on_forward, self._has_ended = model, on_end, on_forward, False
        self._error, self._key = "", f"dpexp.watch {id(self)}"
        self._key_of_end = f"{self._key} end"
        self._of_model: list[_Seen] = []
        self._of_loss: list[_Seen] = []
        self._penalties: list[Penalty] = []
        self._order, self._lock, self._thread = itertools.count(), threading.Lock(), _Thread()
        self._clones = Clones()
        self._has_stepped, self._open, self._last = False, 0, -1
        self._walk: Walk | None = None
        self._pass = ""
        self._hooks: list[Hook] = []
        self._handles: list[Any] = []
        self._versions: tuple[int, ...] = ()

    # --- hooks ---

    def observe(self) -> None:
        """Register the hooks around those that the model has."""
        self._has_ended, self._error, self._has_stepped = False, "", True
        self._thread, self._open, known = _Thread(), 0, set[str]()
        for part in parts(self._model):
            if part.name in known or isinstance(part.module, torch.jit.ScriptModule):
                continue
            known.add(part.name)
            kind = Hook if part.name else RootHook
            enter = kind(partial(self.safe(self._enter), part.name, part.module))
            leave = kind(partial(self.safe(self._leave), part.name))
            self._hooks += [enter, leave]
            self._handles += [
                part.module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
                part.module.register_forward_hook(leave, with_kwargs=True, always_call=True),
            ]

    def end(self) -> None:
        """See nothing from now on, and forget all calls."""
        self._has_ended, self._of_model, self._of_loss, self._penalties = True, [], [], []

    def remove_hooks(self) -> None:
        """Code that was compiled with the hooks calls dead ones."""
        for hook in self._hooks:
            hook.act = None
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles = [], []

    # --- windows ---

    def check(self) -> None:
        """Raise NotComparableError for what no call of a single device repeats."""
        if self._error:
            raise NotComparableError(self._error)

    def end_window(self) -> None:
        """An optimizer has stepped: what the next backward reaches begins a new window."""
        self._has_stepped = True

    def forget_window(self) -> None:
        """What a backward has reached is used up."""
        self._of_model = [each for each in self._of_model if not each.gradients]
        self._of_loss = [each for each in self._of_loss if not each.gradients]
        self._penalties = []

    def drop_others(self) -> None:
        """Forget the calls that no backward has reached since the step before, as those of a validation."""
        some = *self._of_model, *self._of_loss
        if all(each.call.order < self._last for each in some):  # optimizers step one after the other
            return
        before, self._last = self._last, next(self._order)

        def kept(some: Sequence[_Seen]) -> list[_Seen]:
            return [each for each in some if each.gradients or each.call.order > before]

        self._of_model, self._of_loss = kept(self._of_model), kept(self._of_loss)

    @property
    def window(self) -> Window:
        """What a backward has reached."""
        calls, losses = (
            sorted((each for each in some if each.gradients), key=lambda each: each.call.order)
            for some in (self._of_model, self._of_loss)
        )
        places = {seen: place for place, seen in enumerate(losses)}

        def frozen(seen: _Seen) -> Call:
            of = sorted(places[each] for each in seen.losses if each in places)
            return replace(seen.call, gradients=dict(seen.gradients), backward=seen.backward, losses=of)

        return Window([frozen(each) for each in calls], [frozen(each) for each in losses], self._penalties)

    @property
    def passes_so_far(self) -> int:
        """How many backward passes there were since an optimizer stepped."""
        return 0 if self._has_stepped else self.passes

    @property
    def count(self) -> int:
        """How many calls of the model were seen since the window began."""
        return len(self._of_model)

    def begin_window(self) -> None:
        """What the optimizer has used up is not part of this step."""
        self.forget_window()
        self.passes, self.is_by_grad = 0, False
        self._clones.prune()
        self._has_stepped, self._versions, self._noted, self.is_edited = False, (), (), False
        self.windows += 1

    # --- calls ---

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; inside it no call of the model is under way, and that around it is none."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            thread = self._thread
            depth, thread.depth = thread.depth, 0
            self._drop_open()
            try:
                return function(*args, **kwargs)
            finally:
                thread.depth = depth

        return called

    def objective(self, value: torch.Tensor) -> None:
        """The loop minimizes this scalar: the coefficients that losses have in it are meant."""
        if not self._is_on or not (ends := marked(value, self._key_of_end)):
            return
        self.is_paused = True
        try:
            found = torch.autograd.grad(value, [*ends.values()], retain_graph=True, allow_unused=True)
        except RuntimeError:  # of a backward that runs once: the coefficients stay unknown
            return
        finally:
            self.is_paused = False
        for seen, each in zip(ends, found, strict=True):
            seen.call = replace(seen.call, coefficient=None if each is None else float(each))

    def mark_end(self, seen: _Seen, values: Iterable[torch.Tensor]) -> None:
        """Mark where the only scalar with a gradient comes from, as that whose coefficient is asked for."""
        scalars = [each for each in values if each.requires_grad and not each.dim()]
        if len(scalars) == 1:
            mark(scalars[0], self._key_of_end, seen)

    def loss_called(self, function: Callable[..., Any], inputs: Any) -> tuple[_Seen | None, Any]:
        """The call, and its arguments as other tensors: the loop's also get the gradient of other uses."""
        if not self._is_on or self._thread.depth or self._pass:
            return None, inputs
        call = Call(
            "",
            self._clones.of_tree(inputs),
            next(self._order),
            Autocast.now(_kind(inputs)),
            function=function,
            place=_places(),
        )
        inputs = tensors.map_tensors(lambda each: each.view_as(each) if each.requires_grad else each, inputs)
        wanted = [each.requires_grad for each in tensors.walk(inputs)]
        seen = _Seen(replace(call, wanted=wanted))
        self._follow(seen, inputs, self._of_loss)
        return seen, inputs

    @property
    def _is_on(self) -> bool:
        return not (self.is_paused or self._has_ended) and torch.is_grad_enabled()

    def safe(self, act: Callable[..., None]) -> Callable[..., None]:
        """What it raises is not the loop's: the next step is not comparable then."""

        def safe(*args: Any) -> None:
            try:
                act(*args)
            except Exception as error:
                self._refuse(f"a call could not be observed: {describe(error)}")

        return safe

    def _refuse(self, why: str) -> None:
        self._error = self._error or why

    def _enter(self, name: str, part: nn.Module, module: nn.Module, args: Any, kwargs: Any) -> None:
        thread = self._thread
        thread.depth = thread.depth + 1
        if thread.depth > 1:
            if thread.seen is not None and thread.depth == 2:
                self._see_inside(thread.seen)
            return
        if self._has_ended:
            self._on_end()
        is_replica = getattr(module, "_is_replica", False)
        is_ours = (self._open == 0) if is_replica else module is part
        thread.seen = None
        is_recomputed = bool(self._pass) and not (self._walk is not None and self._walk.recomputes)
        if not (self._is_on and is_ours) or is_recomputed:
            return
        self._on_forward()
        self._check_versions()
        thread.seen = self._entered(name, module, (args, kwargs), is_replica)
        self._open += not is_replica

    def _entered(self, name: str, module: nn.Module, inputs: Any, is_replica: bool) -> _Seen:
        self.strategy, (device, _) = _strategy_of(module), devices.current_device()
        parallel = getattr(DistributedDataParallel, "_active_ddp_module", None)
        for hook, _ in getattr(parallel, "_comm_hooks", ()):
            self.hook = getattr(hook, "__name__", type(hook).__name__)
        kind = _kind(inputs, _parameters(module))
        on = next((each.device for each in tensors.walk(inputs)), devices.HOST)
        call = Call(
            name,
            self._clones.of_tree(inputs),
            next(self._order),
            Autocast.now(kind),
            devices.label(device or on),
            is_replica,
            time.perf_counter(),
            takes_inputs=any(each.is_leaf and each.requires_grad for each in tensors.walk(inputs)),
            feeds_back=any(each.grad_fn is not None for each in tensors.walk(inputs)),
            before=State.of(module, kind, lambda buffer: self._clones.of(full(buffer))),
        )
        if not is_replica:
            new_in(module)
        return _Seen(call, range(_sequence(), 0), edges(inputs))

    def _see_inside(self, seen: _Seen) -> None:
        """Accelerate enters autocast in a forward that it has put on the instance."""
        root, call = self._model, seen.call
        if "forward" in vars(root) and not call.part and torch.is_autocast_enabled(call.autocast.kind):
            seen.call = replace(call, autocast=Autocast.now(call.autocast.kind))

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        thread = self._thread
        thread.depth = max(0, thread.depth - 1)
        if thread.depth or (seen := thread.seen) is None:
            return
        self._drop_open()
        if not self._is_on:
            return
        left = {} if seen.call.is_replica else new_in(module, outputs)
        leaves = [*tensors.walk(outputs), *left.values()]
        seen.call = replace(
            seen.call,
            leaves=[*map(self._clones.of, leaves)],
            left=list(left),
            drawn=RandomState.now(seen.call.autocast.kind),
        )
        seen.span = range(seen.span.start, _sequence())
        self.mark_end(seen, leaves)
        self._follow(seen, leaves, self._of_model)

    def _drop_open(self) -> None:
        """The call that is under way in this thread is over."""
        seen, self._thread.seen = self._thread.seen, None
        self._open -= seen is not None and not seen.call.is_replica

    def _follow(self, seen: _Seen, tree: Any, some: list[_Seen]) -> None:
        known, is_loss = set[int](), seen.call.function is not None
        for place, each in enumerate(tensors.walk(tree)):
            if each.grad_fn is not None and id(each) not in known:
                known.add(id(each))
                mark(each, self._key, (seen, place, is_loss))
                reach = partial(self.safe(self._reach), seen, place, each.output_nr)
                each.grad_fn.register_prehook(reach)  # after all hooks of the tensor, which may change it
        with self._lock:
            some.append(seen)

    def _check_versions(self) -> None:
        """Parameters of a window are written by its last step only; those of FSDP are gathered in place."""
        if hasattr(self._model, "_get_fsdp_state"):
            return
        versions = tuple(each._version for each in _parameters(self._model))
        if self._has_stepped or not any(each.gradients for each in self._of_model):
            self._versions = versions
        elif self._versions and versions != self._versions:
            self._refuse(
                "parameters are written between the backward passes of a step, as by another optimizer or a "
                "projection: no step of a single device has these gradients; do it after the step"
            )

    # --- backward passes ---

    @contextmanager
    def differentiates(self, roots: Any, inputs: Any, *, is_backward: bool) -> Iterator[None]:
        """Around a pass through autograd. ``inputs`` are what gradients are taken of; None is everything."""
        if self.is_paused or self._has_ended:
            yield
            return
        outer = self._pass, self._walk
        try:
            if outer[0]:
                self.safe(self._begin_inner)(roots)
            else:
                self.note_edits()
                self._pass = self._kind_of_pass(inputs, is_backward)
                if self._pass != "of others":
                    self.safe(self._begin_pass)(roots)
            yield
        finally:
            self._pass, self._walk = outer
            if not outer[0]:
                self._noted = self._gradients()

    @contextmanager
    def writes(self) -> Iterator[None]:
        """Around a function of PyTorch that writes to gradients, which is no edit of the loop's own."""
        self.note_edits()
        yield
        self._noted = self._gradients()

    def note_edits(self) -> None:
        """Whether the loop has written to gradients since the last pass."""
        now = self._gradients()
        self.is_edited |= bool(self._noted) and any(now) and now != self._noted

    def _gradients(self) -> Sequence[Any]:
        """Which tensors the gradients are, and how often they were written to."""
        grads = (each.grad for each in _parameters(self._model))
        return [None if each is None else (id(each), each._version) for each in grads]

    def _kind_of_pass(self, inputs: Any, is_backward: bool) -> str:
        if inputs is None:
            return "backward"
        own = {id(each) for each in _parameters(self._model)}
        if not any(id(each) in own for each in tensors.walk(inputs)):
            return "of others"
        return "backward" if is_backward else "grad"

    def _walked(self, roots: Any) -> Walk:
        spans = [each.span for each in self._of_model if not each.call.is_replica]
        return walk(
            edges(roots),
            self._key,
            lambda seen: seen.sources,
            lambda number: any(number in span for span in spans),
        )

    def _begin_pass(self, roots: Any) -> None:
        found = self._walked(roots)
        names = self._names() if found.parameters else {}
        own = [(node, place, names[id(each)]) for node, place, each in found.parameters if id(each) in names]
        self._walk = found
        if not (found.leaves or own or found.enters):
            return
        with self._lock:  # gradients that were clipped after the last pass are gone: of a norm too large
            is_skipped = self.was_clipped and all(each.grad is None for each in _parameters(self._model))
            if self._has_stepped or is_skipped:
                self.begin_window()
        self.passes += 1
        self.was_clipped = False
        self.is_by_grad |= self._pass == "grad"
        for seen, losses in found.calls.items():
            seen.losses |= losses - {None}
        if found.enters:
            self._refuse(
                "a part of the loss comes from inside the model (a tensor that a hook has taken): return it "
                "from forward, or keep it in an attribute of a module"
            )
        if own:
            self._follow_parameters(own)

    def _names(self) -> dict[int, str]:
        """The names of parameters by their ids: with FSDP of the shards, and of what is gathered of them."""
        names = {id(each): name for name, each in named_parameters(self._model).items()}
        of_parts: dict[Any, str] = {each.module: each.name for each in parts(self._model)}
        for part in [each for each in of_parts if hasattr(each, "_get_fsdp_state")]:
            group = getattr(part._get_fsdp_state(), "_fsdp_param_group", None)
            for each in getattr(group, "fsdp_params", ()):
                info = each._module_info
                names[id(each.sharded_param)] = child_name(of_parts[info.module], info.param_name)
        return names

    def _begin_inner(self, roots: Any) -> None:
        """A backward pass inside of one, as that of a reentrant checkpoint."""
        losses = (
            {seen for seen, _ in self._walk.leaves if seen.call.function} if self._walk is not None else set()
        )
        self._walk = self._walked(roots)
        for seen in self._walk.calls:
            seen.losses |= losses

    def _follow_parameters(self, own: Sequence[tuple[Any, int, str]]) -> None:
        """See the gradients that go to parameters directly."""
        penalty = Penalty({}, self.passes)
        self._penalties = [*self._penalties, penalty]

        def add(name: str, place: int, gradients: Any, _: Any) -> None:
            is_now = penalty.backward == self.passes and not self.is_paused
            if (gradient := gradients[place]) is not None and is_now:
                known = penalty.gradients.get(name)
                new = gradient.detach()
                penalty.gradients[name] = new.clone() if known is None else known + new  # type: ignore[index]

        for node, place, name in own:
            node.register_hook(partial(self.safe(add), name, place))

    def _reach(self, seen: _Seen, place: int, number: int, gradients: Any) -> None:
        gradient = gradients[number]
        if gradient is None or self.is_paused or self._has_ended:
            return
        if torch.is_grad_enabled():
            self._refuse("the loop takes a gradient of a gradient (create_graph): watch it without that term")
        if self._pass == "of others" or (self._walk is not None and (seen, place) not in self._walk.leaves):
            return
        with self._lock:
            if self._has_stepped:
                self.begin_window()
            known = seen.gradients.get(place)
            new = self._clones.of(gradient) if known is None else known + gradient.detach()
            seen.gradients[place] = new
            seen.backward = seen.backward or self.passes


OUTSIDE = f"{LoopCalls.outside.__qualname__}.<locals>.called"


def _places() -> tuple[int, int]:
    """Which instruction of the program calls a loss, and that with all that are under way, as numbers that
    are the same in every process.

    What is around a step that a framework calls (``outside``) is not the program's, and not always the same.
    """
    lines: list[str] = []
    own = 0
    frame: Any = sys._getframe(2)
    while frame is not None and len(lines) < DEPTH and frame.f_code.co_qualname != OUTSIDE:
        name = frame.f_code.co_filename
        lines.append(f"{name}:{frame.f_lineno}:{frame.f_lasti}")
        own = own or (zlib.crc32(lines[-1].encode()) if not name.startswith(NOT_OF_PROGRAM) else 0)
        frame = frame.f_back
    return own, zlib.crc32("\n".join(lines).encode())


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """As ``module.parameters()``, without their names, which take most of its time."""
    some = (own for part in modules_in(module) for own in part._parameters.values() if own is not None)
    return list(dict.fromkeys(some))


def _sequence() -> int:
    number: int = torch._C._autograd._get_sequence_nr()
    return number


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
