"""Replay: a single device takes the same calls of the model, one by one, from the state before the step.

It is a copy of the model as written, made before the layout. Each call has its own inputs, random state,
buffers, modes and autocast. Between two watches the copy has no numbers: its parameters are empty.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp import devices, tensors
from dpexp.config.errors import NotComparableError
from dpexp.copies import copied_module
from dpexp.data.rng import kept_globals
from dpexp.strategies.modules import named_parameters, parts
from dpexp.verification.alone import alone, everyone
from dpexp.verification.compare import Limits
from dpexp.verification.own_steps import base_tolerance
from dpexp.verification.rounding import OtherwiseRounded
from dpexp.watch.blocks import Absent, compute_in_blocks, is_in_backward
from dpexp.watch.calls import Call, full
from dpexp.watch.graph import new_in
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.state import RandomState

Take = Callable[[str, torch.Tensor], None]
"""It gets the name of a parameter, and its gradient."""

HAS_STATE = (
    "a call of the model cannot be repeated: it has a state that is not a buffer (a counter, a cache, a "
    "generator of its own): keep it in a buffer, or turn it off while the loop is watched"
)


def limits_of(types: Sequence[torch.dtype]) -> Limits:
    """What counts as rounding in the narrowest of these types."""
    narrowest = max(types, key=lambda each: torch.finfo(each).eps, default=torch.float32)
    tolerance, negligible = base_tolerance(narrowest, "")
    return Limits.of(narrowest, tolerance, negligible)


class Narrowest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the narrowest type that operations inside compute in, beginning with those of ``some``."""

    def __init__(self, some: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._types = {each.dtype for each in some}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._types |= {each.dtype for each in tensors.walk((args, found))}
        return found

    @property
    def limits(self) -> Limits:
        """What counts as rounding in this type."""
        return limits_of([each for each in self._types if each.is_floating_point])


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside, gradients are recorded, and nothing is under autocast on the host and the model's devices."""
    kinds = {each.device.type for each in model.parameters()} - {"cpu", "meta"}
    with ExitStack() as inside:
        inside.enter_context(kept_globals())
        inside.enter_context(torch.enable_grad())
        inside.enter_context(torch.autocast("cpu", enabled=False))
        for kind in kinds:
            count = torch.get_device_module(kind).device_count()
            inside.enter_context(torch.random.fork_rng(range(count), device_type=kind))
            inside.enter_context(torch.autocast(kind, enabled=False))
        yield


def rounded(draw: int | None) -> Any:
    """A context that rounds otherwise; without a draw it changes nothing."""
    return nullcontext() if draw is None else OtherwiseRounded(draw)


class Replay:
    """A single device, with ``parameters`` by their names in the model as written, a shared one once.

    ``low`` is the type in which FSDP2's MixedPrecisionPolicy computes, if any.

    ``blocks`` are those whose parameters are there only while they compute, with the names of these; without
    any all parameters of the model are there. Every rank enters the same blocks: a rank that takes no call
    repeats one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = {name: each.shape for name, each in named_parameters(model).items()}
        empty = {
            id(each): nn.Parameter(_without_numbers(each.shape, each.dtype), each.requires_grad)
            for each in model.parameters()
            if type(each) is nn.Parameter
        }
        self._model = copied_module(model, empty)
        self.parameters = named_parameters(self._model)
        self.low: torch.dtype | None = None
        self.blocks: Mapping[str, Sequence[str]] = {}
        self._source: Mapping[str, nn.Parameter] = {}
        self._ranks: LoopRanks | None = None
        self._entered = ""
        self._on_leave: Callable[[Sequence[str]], None] = _ignore

    @property
    def types(self) -> dict[str, torch.dtype]:
        """Those of the parameters of the loop."""
        return {name: each.dtype for name, each in self._source.items()}

    @property
    def trained(self) -> list[str]:
        """The names of those that get a gradient."""
        return [name for name, each in self.parameters.items() if each.requires_grad]

    def check(self, laid_out: nn.Module) -> None:
        """Raise NotComparableError where the model that is laid out is another one."""
        if any(isinstance(part, nn.SyncBatchNorm) for part in laid_out.modules()):
            raise NotComparableError(
                "SyncBatchNorm normalizes with the rows of all ranks, which no call of a single device has: "
                "watch the loop with BatchNorm instead"
            )
        found = named_parameters(laid_out)
        for name, shape in self._shapes.items():
            if name not in found:
                raise NotComparableError(
                    f"parameter '{name}' of the model as written is not in the model any more"
                )
            if found[name].shape != shape:
                raise NotComparableError(
                    f"parameter '{name}' has the shape {tuple(found[name].shape)} in place of "
                    f"{tuple(shape)}, as FSDP1 leaves it: use fully_shard (FSDP2)"
                )

    def load(self, laid_out: nn.Module, ranks: LoopRanks, blocks: Mapping[str, Sequence[str]]) -> None:
        """Take the parameters, which ``check`` has seen; every rank must call this."""
        self.low = low_of(laid_out)
        self._source, self._ranks = named_parameters(laid_out), ranks
        device = next((each.device for each in self._source.values()), devices.HOST)
        _materialize(self._model, device)
        self.parameters = named_parameters(self._model)
        if not self.blocks:
            self.blocks = blocks
            compute_in_blocks(self._model, blocks, self._enter, self._leave, device)
        for name, each in self.parameters.items():
            each.requires_grad = self._source[name].requires_grad
        of_blocks = {name for names in blocks.values() for name in names}
        stay = self.parameters.keys() - of_blocks
        self._free(of_blocks)
        ranks.together(lambda: self._allocate(stay))
        self._fill(stay)

    def release(self) -> None:
        """Free the parameters and buffers."""
        self._free(self.parameters if self._source else ())
        for each in self._model.buffers():
            each.data = each.data.new_empty(0)
        self._source, self._ranks = {}, None

    @property
    def is_gathered(self) -> bool:
        """Whether parameters are gathered while they are computed with, so that all ranks must compute."""
        sharded = (
            hasattr(self._source[name], "placements") for names in self.blocks.values() for name in names
        )
        return any(sharded)

    def _allocate(self, names: Collection[str]) -> None:
        """Where no rank waits for another one: there may be no memory."""
        needed = {}
        for name in names:
            each, source = self.parameters[name], self._source[name]
            kind = self.low or source.dtype, source.device
            if type(each) is Absent:
                each.__class__ = nn.Parameter  # type: ignore[assignment]
            if not each.is_contiguous() or (each.dtype, each.device) != kind:
                needed[name] = each.shape, *kind
        for name, made in tensors.empty_together(needed).items():
            self.parameters[name].data = made

    def _fill(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.parameters[name].data.copy_(full(self._source[name]))

    def _free(self, names: Iterable[str]) -> None:
        for name in names:
            each, source = self.parameters[name], self._source[name]
            each.data = _without_numbers(each.shape, self.low or source.dtype, source.device)
            if type(each) is nn.Parameter:
                each.__class__ = Absent

    def _enter(self, block: str) -> None:
        """Every rank comes here, or none; those that fail elsewhere come to no block."""
        assert self._ranks is not None
        with everyone():
            before, self._entered = self._entered, block
            if before != block:
                self._free(self.blocks.get(before, ()))
            self._allocate(self.blocks[block])
            now = block, is_in_backward()
            if self.is_gathered and any(each != now for each in self._ranks.all_gather(now)):
                raise NotComparableError("ranks compute other parts of the model: state replica='full'")
            if before == block:
                return
            if before and is_in_backward():
                self._on_leave(self.blocks[before])
            self._fill(self.blocks[block])

    def _leave(self) -> None:
        """The forward of the block has ended; inside of a backward it is there until the next one."""
        if not is_in_backward():
            self._free(self.blocks.get(self._entered, ()))
            self._entered = ""
            torch.clear_autocast_cache()

    def end_round(self) -> None:
        """Every rank must call this after a call, also after an error in it."""
        if self._ranks is not None and self.is_gathered:
            while any(self._ranks.all_gather("")):
                pass

    def outputs(self, call: Call, draw: int | None = None) -> list[torch.Tensor]:
        """Repeat a call: the tensors among its outputs, of any shape, in order, and what it leaves.

        Raises NotComparableError where it leaves something else.
        """
        with self._repeating(call, draw) as (part, (args, kwargs)):
            new_in(part)
            outputs = list(tensors.walk(part(*args, **kwargs)))
        if torch.is_grad_enabled() and call.left:
            left = new_in(part, outputs)
            if missing := [path for path in call.left if path not in left]:
                raise NotComparableError(f"{HAS_STATE} ({missing[0]} is not there again)")
            outputs += [left[path] for path in call.left]
        return outputs

    def draws_alike(self, call: Call) -> bool:
        """Whether the random numbers that a call leaves are those that the loop's has left."""
        with torch.no_grad(), self._repeating(call, None) as (part, (args, kwargs)):
            part(*args, **kwargs)
            return RandomState.now(call.autocast.kind) == call.drawn

    def differentiate(
        self,
        call: Call,
        outputs: Sequence[torch.Tensor],
        factor: float,
        take: Take,
        on_leave: Callable[[Sequence[str]], None],
        draw: int | None = None,
    ) -> None:
        """Give to ``take`` the name and the gradient of each parameter, of any shape, as soon as it is there:
        what a call makes of the loop's gradients at its leaves, divided by ``factor``. ``on_leave`` gets the
        names of the parameters of each block after its backward.
        """
        pairs = [
            (outputs[place], gradient.to(outputs[place]) / factor)
            for place, gradient in call.gradients.items()
            if place < len(outputs)
            and outputs[place].requires_grad
            and outputs[place].shape == gradient.shape
        ]
        if not pairs:
            return

        def leave(name: str, parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                take(name, gradient.to_dense() if gradient.is_sparse else gradient)

        handles = [
            each.register_post_accumulate_grad_hook(partial(leave, name))  # type: ignore[no-untyped-call]
            for name, each in self.parameters.items()
            if each.requires_grad
        ]
        self._on_leave = on_leave
        try:
            with alone(), rounded(draw):
                ends, gradients = map(list, zip(*_from_outside(pairs), strict=True))
                torch.autograd.backward(ends, gradients)
        finally:
            for handle in handles:
                handle.remove()
            self._leave()
            self._on_leave = _ignore
            for each in self.parameters.values():
                each.grad = None

    def scalar(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss among the outputs of the model, a scalar: in eval mode, if it has one there."""
        try:
            outputs = list(tensors.walk(self._model.eval()(*args, **kwargs)))
        except Exception:  # a detector needs no targets there
            outputs = []
        if not any(each.dim() == 0 for each in outputs):
            outputs = list(tensors.walk(self._model.train()(*args, **kwargs)))
        return next(each for each in outputs if each.dim() == 0)

    def on_host(self) -> Replay:
        """A copy on the host, where an id that is not known raises and does not break the device."""
        if self.blocks:
            raise NotComparableError("its parameters are there one block at a time")
        if all(each.device.type == "cpu" for each in self.parameters.values()):
            return self
        other = copy.copy(self)
        other._model = copied_module(self._model).cpu()
        return other

    @contextmanager
    def _repeating(self, call: Call, draw: int | None) -> Iterator[Any]:
        """The part of the copy, as it was before the call, and the inputs."""
        if inside := [each for each in self.blocks if call.part.startswith(f"{each}.")]:
            raise NotComparableError(f"the loop calls a part of '{inside[0]}': state replica='full'")
        called = next((each.module for each in parts(self._model) if each.name == call.part), None)
        if called is None:
            raise NotComparableError(f"'{call.part}', which the loop calls, is not in the model as written")
        inputs = tensors.map_tensors(torch.clone, call.inputs)
        places = {each.device for each in self.parameters.values()}
        if len(places) == 1 and places != {devices.HOST}:  # a replica was on a device of its own
            inputs = devices.move(inputs, *places)
        if self.low:
            inputs = tensors.cast(inputs, self.low)
        assert call.before is not None
        call.before.load(called, next(iter(places), devices.HOST))
        with alone(), call.autocast.entered(), rounded(draw):
            yield called, inputs


def _ignore(names: Sequence[str]) -> None:
    """Nobody waits for these."""


def low_of(laid_out: nn.Module) -> torch.dtype | None:
    """The type in which FSDP2's MixedPrecisionPolicy computes."""
    policy = getattr(getattr(laid_out, "_get_fsdp_state", lambda: None)(), "_mp_policy", None)
    return getattr(policy, "param_dtype", None)


def _without_numbers(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device = devices.HOST
) -> torch.Tensor:
    """A tensor of this shape whose memory is one number: NaN, which shows where it is read."""
    number = math.nan if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full((), number, dtype=dtype, device=device).expand(shape)


def _materialize(model: nn.Module, device: torch.device) -> None:
    """Give meta tensors a device; shared ones stay shared."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    slots: list[dict[str, Any]] = [
        own for each in model.modules() for own in (each._parameters, each._buffers)
    ]
    for own in slots:
        for key, each in own.items():
            if each is None or not each.is_meta:
                continue
            if each not in made:
                empty = torch.zeros_like(each, device=device)
                is_parameter = isinstance(each, nn.Parameter)
                made[each] = nn.Parameter(empty, each.requires_grad) if is_parameter else empty
            own[key] = made[each]


def _from_outside(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What of the gradients does not come through other outputs, as that of logits does from the loss."""
    order: Callable[[Any], int] = lambda pair: -pair[0].grad_fn._sequence_nr() if pair[0].grad_fn else 0  # noqa: E731
    done: list[tuple[torch.Tensor, torch.Tensor]] = []
    for output, gradient in sorted(pairs, key=order):
        inside = None
        if done:
            later, gradients = map(list, zip(*done, strict=True))
            (inside,) = torch.autograd.grad(later, output, gradients, retain_graph=True, allow_unused=True)
        done.append((output, gradient if inside is None else gradient - inside))
    return done
