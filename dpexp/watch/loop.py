"""Watched loop: the hooks around a user's training loop, its steps, and its verdict."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dpexp.config.errors import ConfigError, NotComparableError, describe
from dpexp.config.words import plural
from dpexp.parallel.data_parallel import DataParallel
from dpexp.strategies.modules import Wrapper, named_parameters
from dpexp.verification.compare import Difference
from dpexp.verification.result import KINDS, row_of
from dpexp.watch import hooks
from dpexp.watch.averages import Known
from dpexp.watch.calls import LoopCalls, ObservedLoss, Window, full
from dpexp.watch.clipping import Clip
from dpexp.watch.equal import Kind
from dpexp.watch.expected import Observed, OneByOne, Step
from dpexp.watch.explain import OWN_ROWS, FoundError, LoopFinding
from dpexp.watch.judge import Judge
from dpexp.watch.options import Options
from dpexp.watch.program import shapes
from dpexp.watch.ranks import LoopRanks, LostRankError
from dpexp.watch.recording import Recording
from dpexp.watch.replay import Replay, unchanged
from dpexp.watch.shards import own as shard
from dpexp.watch.shards import sampled
from dpexp.watch.step import (
    Stepping,
    begin,
    check_synchronized,
    checksums,
    compare_gradients,
    compare_update,
    expect_update,
    held_by,
)
from dpexp.watch.trained import Trained, requires_grad

_on: weakref.WeakSet[WatchedLoop] = weakref.WeakSet()
MOST_CLOSED = 8
"""So many windows are kept that steps of other optimizers have closed."""


@dataclass
class Seen:
    """What a watch has seen of the loop since an optimizer stepped, besides calls.

    ``clips`` are of one ``window``, as are the gradients ``unclipped``; no backward has come after ``early``
    ones, so they may be of the next.
    """

    window: int = 0
    clips: list[Clip] = field(default_factory=list)
    early: list[Clip] = field(default_factory=list)
    is_unscaled: bool = False
    is_scaled: bool = False
    scaler: Any = None
    unclipped: Mapping[str, torch.Tensor] | None = None
    of_pass: int = -1


class WatchedLoop:
    """See ``dpexp.watch``. ``findings`` are wrong, ``warnings`` may be meant, ``note`` says what ended it.

    ``loss`` is the user's, observed. ``steps`` were compared, and took ``seconds`` more than unwatched ones.
    """

    def __init__(self, model: nn.Module, options: Options, recording: Recording, replay: Replay) -> None:
        self.findings: list[LoopFinding] = []
        self.warnings: dict[str, None] = {}
        self.note, self.steps, self.seconds = "", 0, 0.0
        self._model, self._options, self._wanted = model, options, options.steps
        self._recording, self._replay = recording, replay
        self._trained = Trained(requires_grad(model))
        own = named_parameters(model)
        self._written_as = None if any(each.is_meta for each in own.values()) else checksums(own)
        self._written: weakref.WeakSet[nn.Parameter] = weakref.WeakSet(model.parameters())
        self._calls = LoopCalls(model, self._remove, self._forget_step)
        self.loss = options.loss if options.loss is None else self.observed(options.loss)
        self._ranks = LoopRanks()  # every rank is here; at a step one may not be
        self._step: Step | None = None
        self._stepped: Stepping | None = None
        self._kinds: weakref.WeakKeyDictionary[torch.optim.Optimizer, Kind] = weakref.WeakKeyDictionary()
        self._rules: Mapping[str, Known] = {}
        self._residue: dict[str, torch.Tensor] = {}
        self._stepping: torch.optim.Optimizer | None = None
        self._inside = self._closures = 0
        self._done_in_window: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._other_steps = self._window = 0
        self._seen = Seen()
        self._started = self._spent = self._entered = 0.0
        self._was_clipped = self._may_be_skipped = False
        self._errors = dict[str, Difference]()
        self._handles: list[Any] = []
        self._last: list[Any] = []
        self._is_of_a_copy = False
        self._unsynchronized: FoundError | None = None
        self._closed: dict[int, Window] = {}
        self._last_step: dict[int, int] = {}
        self.done = True
        self._observe()

    @classmethod
    def begin(cls, model: nn.Module, options: Options, name: str | None, track: bool) -> WatchedLoop:
        """Begin to watch, and a run of this name if it is to be tracked; every rank must call this.

        Raises ConfigError for a model that is laid out already, or cannot be copied.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model is {type(model).__name__}, not a torch.nn.Module")
        if found := _layout_of(model):
            raise ConfigError(
                f"the model is laid out already ({found}): call dpexp.watch before, on the model as written"
            )
        stated = {key: getattr(options, key) for key in ("clip_norm", "weight", "steps", "raises", "replica")}
        replay = Replay(model)
        return cls(model, options, Recording.begin(model, name, stated) if track else Recording(), replay)

    def observed(self, loss: Callable[..., Any], is_whole: bool = True) -> ObservedLoss:
        """Another function that is part of the loop's loss, observed as ``loss`` is.

        Of one that is not the whole loss the loop may differentiate a multiple.
        """
        return ObservedLoss(loss, self._calls, is_whole)

    def objective(self, value: torch.Tensor) -> None:
        """State what the loop is going to minimize: a scalar with a gradient, which it divides by its
        micro-batches. The coefficients that losses have in it are meant.
        """
        self._calls.objective(value)

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, inside of which no call of the model is under way, as a framework's wrapper calls a
        training step in the place of the model's forward.
        """
        return self._calls.outside(function)

    def again(self) -> None:
        """Watch as many further steps; every rank must call this.

        Raises RuntimeError while the loop is watched.
        """
        if not self.done:
            raise RuntimeError(
                f"the loop is still watched: {self.steps} of {self._wanted} steps were compared"
            )
        self._remove()
        self._wanted = self.steps + self._options.steps
        self._observe()

    def log(self, **metrics: float) -> None:
        """Record the user's own metrics of this step: numbers, or tensors with one number.

        In MLflow a name that dpexp has itself, such as ``loss``, is ``user/loss``.
        """
        self._recording.log(metrics)

    def verdict(self) -> WatchedLoop:
        """The watch itself, which ends. Raises VerificationError for a wrong loop, and NotComparableError."""
        self._end()
        self._remove()
        if self.findings:
            raise self.findings[0].error()
        if not self.steps:
            raise NotComparableError(self.note)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """End the watch and its run in MLflow."""
        self._end()
        self._remove()
        self._recording.close(error)

    def __enter__(self) -> WatchedLoop:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def __str__(self) -> str:
        head = f"right: {self.steps} steps" if self.steps else f"not compared: {self.note}"
        head = f"WRONG {self.findings[0]}" if self.findings else head
        errors = [f"{kind} {each.error:.1e}" for kind, each in self._errors.items()]
        return "; ".join([head, *([", ".join(errors)] if errors else []), *self.warnings])

    # --- what hooks tell ---

    def _observe(self) -> None:
        self.done, self._stepping, self._inside, self._seen = False, None, 0, Seen()
        self._started, self._spent = 0.0, self.seconds
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._calls.observe()
        self._residue = self._samples()
        _on.add(self)
        hooks.begin(self)

    def _end(self) -> None:
        """See nothing more. The hooks of optimizers go at the next forward: a step may call them now."""
        if self.done:
            return
        self.done = True
        self._conclude()
        self._calls.end()
        _on.discard(self)
        self._replay.release()
        self._step, self._stepped, self._residue, self._seen = None, None, {}, Seen()
        self._closed, self._unsynchronized = {}, None

    def _remove(self) -> None:
        self._calls.remove_hooks()
        hooks.end(self)
        self._remove_last()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _remove_last(self) -> None:
        for handle in self._last:
            handle.remove()
        self._last = []

    @property
    def _is_idle(self) -> bool:
        return self.done or self._calls.is_paused

    def differentiates(self, roots: Any, inputs: Any, *, is_backward: bool) -> AbstractContextManager[None]:
        """Around a pass through autograd."""
        return self._calls.differentiates(roots, inputs, is_backward=is_backward)

    def writes(self) -> AbstractContextManager[None]:
        """Around a function of PyTorch that writes to gradients."""
        return nullcontext() if self._is_idle else self._calls.writes()

    def clips(
        self, kind: str, parameters: list[torch.Tensor], limit: float, norm: Any, norm_type: float
    ) -> None:
        """Gradients of these are clipped now."""

        def see() -> None:
            some, passes = frozenset(map(id, parameters)), self._calls.passes
            is_empty = all(each.grad is None for each in parameters)
            seen = Clip(kind, some, limit, norm, norm_type, passes, not self._seen.is_unscaled, is_empty)
            self._clips.append(seen)
            if not self._calls.passes_so_far:
                self._seen.early.append(seen)
            if passes != self._seen.of_pass:  # else they are clipped already
                self._seen.unclipped, self._seen.of_pass = self._samples(), passes
            self._calls.was_clipped |= bool(some & {id(each) for each in self._model.parameters()})

        if not self._is_idle:
            self._calls.safe(see)()

    @property
    def _clips(self) -> list[Clip]:
        """Those of this window: gradients that were clipped in one before are gone."""
        seen, window = self._seen, self._calls.windows
        if seen.window != window:
            seen.clips, seen.early = [replace(each, passes=0) for each in seen.early], []
            seen.window, seen.of_pass = window, -1
        return seen.clips

    def _samples(self) -> dict[str, torch.Tensor]:
        """Some numbers of the gradients, of those that are placed as their parameters."""
        own = [(name, each, each.grad) for name, each in named_parameters(self._model).items()]
        return {
            name: sampled(shard(grad), each)
            for name, each, grad in own
            if grad is not None and getattr(grad, "placements", ()) == getattr(each, "placements", ())
        }

    def is_scaling(self, scaler: Any) -> None:
        """``GradScaler.scale`` is called."""
        self._seen.scaler = scaler

    def unscales(self, optimizer: torch.optim.Optimizer) -> None:
        """``GradScaler.unscale_`` is called for it."""
        self._seen.is_unscaled |= not self._is_idle and bool(held_by(optimizer, self._model))

    @contextmanager
    def scales(self, scaler: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Around ``GradScaler.step``: one that is skipped has used its gradients up, too."""
        if self._is_idle or not held_by(optimizer, self._model):
            yield
            return
        self._may_be_skipped, self._seen.is_scaled = True, scaler.is_enabled()
        was_unscaled = self._seen.is_unscaled
        yield
        self._seen.is_unscaled = was_unscaled
        if self._may_be_skipped and not self.done:
            self._may_be_skipped = False
            self._calls.end_window()
            self._seen = Seen()
            self.warnings["GradScaler skipped a step: it was not compared"] = None

    # --- steps of optimizers ---

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._is_idle:
            return None
        self._may_be_skipped = False
        if self._stepping is optimizer:  # step of a class calls that of its base, which is hooked, too
            self._inside += 1
            return None
        if self._stepping is not None:  # one inside another, as in ZeroRedundancyOptimizer
            return None
        held = held_by(optimizer, self._model)
        inside = (held_by(each, self._model) for each in _optimizers_in(optimizer))
        if held and held.keys() == set(chain.from_iterable(inside)):
            return None  # these step for it
        self._stepping, self._stepped, self._closures = optimizer, None, 0
        if not held:
            self._other_steps += 1
            self._guard(lambda: self._check_others(optimizer))
            shapes = [tuple(each.shape) for group in optimizer.param_groups for each in group["params"]]
            own = [tuple(each.shape) for each in self._model.parameters()]
            self._is_of_a_copy |= sorted(shapes) == sorted(own)
            return None
        if not any(callable(each) for each in (*args, *kwargs.values())):

            def begin_last(*_: Any) -> None:
                if not self._is_idle:
                    self._guard(lambda: self._begin(optimizer, held))

            if optimizer._optimizer_step_pre_hooks:  # which may clip, and come after those of all optimizers
                self._last = [optimizer.register_step_pre_hook(begin_last)]
            else:
                begin_last()
            return None

        def of(value: Any) -> Any:
            return self._closure(value, optimizer) if callable(value) else value

        return tuple(map(of, args)), {key: of(value) for key, value in kwargs.items()}

    def _closure(self, closure: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        """The closure of a step, after whose first call gradients are compared."""

        @wraps(closure)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._is_idle:
                return closure(*args, **kwargs)
            self._closures += 1
            if self._closures > 1:
                self._guard(_refuse_closure)
            stepping, self._stepping = self._stepping, None  # a forward would end the step
            value = closure(*args, **kwargs)
            self._stepping = stepping
            if self._closures == 1 and not self.done:
                self._guard(lambda: self._begin(optimizer, held_by(optimizer, self._model)))
            return value

        return called

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is not self._stepping or (self._calls.is_paused and not self.done):
            return
        if self._inside:
            self._inside -= 1
            return
        self._stepping = None
        self._remove_last()
        if self.done:
            return
        stepped, held = self._stepped, held_by(optimizer, self._model)
        if held:
            own = named_parameters(self._model).items()
            others, seen = {id(each) for name, each in own if name not in held}, self._seen
            clips = [each for each in seen.clips if each.parameters & others]
            self._seen = Seen(seen.window, clips, unclipped=seen.unclipped, of_pass=seen.of_pass)
        self._close_window(optimizer, held)
        if (found := self._unsynchronized) is not None:
            self._unsynchronized = None
            self._guard(lambda: self._settle(found, held))
        if stepped is not None and held:
            self._guard(lambda: self._complete(optimizer, held, stepped))

    def _settle(self, found: FoundError, held: Mapping[str, nn.Parameter]) -> None:
        """Raise it, but NotComparableError if the optimizer has synchronized the ranks."""
        check_synchronized(self._judge(found.finding.step), held)
        raise found

    def _close_window(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Keep the window if parameters of the model are left, whose gradients may still have it."""
        number = self._calls.windows
        trained = {name for name, each in named_parameters(self._model).items() if each.requires_grad}
        if trained <= held.keys():
            self._closed = {}
            self._calls.forget_window()
        elif number not in self._closed:
            self._closed = dict([*self._closed.items(), (number, self._calls.window)][-MOST_CLOSED:])
        self._last_step[id(optimizer)] = number
        self._calls.end_window()

    def _carried_to(self, optimizer: torch.optim.Optimizer) -> Window:
        """The calls since its last step, in windows that the steps of others have closed."""
        since = range(self._last_step.get(id(optimizer), 0) + 1, self._calls.windows)
        return Window(
            [call for number, each in self._closed.items() if number in since for call in each.calls]
        )

    def _forget_step(self) -> None:
        """A step that has raised is over when the model is called again: its gradients are used up."""
        if self._stepping is not None:
            self._calls.end_window()
            self._seen = Seen()
            self._remove_last()
        self._stepping, self._inside, self._unsynchronized = None, 0, None

    def _begin(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Compare the gradients, before the optimizer's step."""
        if self._is_new():
            self._step = None  # its memory
            if self._is_empty(held):
                return
            self._window, self._step = self._calls.windows, self._new_step(optimizer)
            self._done_in_window.clear()
        elif optimizer in self._done_in_window:
            self._refuse_again(held)
            return
        assert self._step is not None
        self._trained.add(held)
        self._done_in_window.add(optimizer)
        judge = self._judge(self._step.number)
        try:
            compared = compare_gradients(judge, self._observed(optimizer), self._step, optimizer, held)
        except FoundError as found:
            if OWN_ROWS not in found.finding.cause or "parameters are wrong" in found.finding.cause:
                raise
            self._unsynchronized = found  # unless the optimizer does it
            return
        self._was_clipped |= compared.was_clipped
        self._trained.reached |= compared.reached
        self._step = self._step.without(held)
        if not self._step.sums:
            self._replay.release()  # the loop's own forward may need the memory
        self._residue |= compared.samples
        self._stepped = expect_update(judge, optimizer, self._step, held, self._kinds.get(optimizer))
        if (update := self._stepped.update) is not None:
            self._kinds[optimizer] = update.kind

    def _judge(self, number: int) -> Judge:
        own = self._model, self._replay, self._options, self._ranks
        return Judge(number, *own, self._errors, self.warnings)

    def _observed(self, optimizer: torch.optim.Optimizer) -> Observed:
        calls, seen = self._calls, self._seen
        clips = self._clips
        calls.note_edits()
        written = frozenset(id(each) for each in self._written)
        return Observed(
            calls.window,
            calls.passes,
            [each if seen.is_scaled else replace(each, is_scaled=False) for each in clips],
            self._residue,
            seen.unclipped if seen.of_pass == calls.passes else None,
            self._carried_to(optimizer),
            seen.is_scaled,
            seen.scaler.get_scale() if seen.scaler is not None and seen.scaler.is_enabled() else 1.0,
            calls.is_edited,
            calls.is_by_grad,
            calls.hook,
            written,
        )

    def _refuse_again(self, held: Mapping[str, nn.Parameter]) -> None:
        """Raise FoundError for gradients that are used twice; a step without any is left out."""
        if self._has_gradients(held):
            cause = "zero_grad is missing, or step is called twice"
            what = "it steps again with the same gradients, without a backward of the model"
            raise FoundError(LoopFinding(self.steps, "optimizer", what, cause))

    def _complete(
        self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter], stepped: Stepping
    ) -> None:
        """Compare the update, after the optimizer's step."""
        step = self._step
        assert step is not None
        compare_update(self._judge(step.number), optimizer, held, stepped)
        self._trained.held |= held.keys()
        self._calls.drop_others()
        if step.number > self.steps:  # else another optimizer has completed it
            self.steps = step.number
            self._record(step)
        self._stepped = None
        if not step.sums:
            self._step = step.over()
        if self.steps >= self._wanted:
            self._end()

    def _is_new(self) -> bool:
        """Whether no optimizer has stepped since calls of the model, on any rank: one may have taken none."""
        if self._ranks.size == 1:
            self._ranks = LoopRanks()  # the process group may be made after the watch began
        self._ranks.meet()
        is_own = self._step is None or self._window != self._calls.windows
        is_new = any(self._ranks.all_gather(is_own))
        if is_new and not is_own:
            self._calls.begin_window()
        return is_new

    def _is_empty(self, held: Mapping[str, nn.Parameter]) -> bool:
        """Whether it is a step of gradients that are zero, without a call of the model.

        As torch.distributed.checkpoint takes one, to make the state of an optimizer.
        """
        return not (any(self._ranks.all_gather(bool(self._calls.window.calls))) or self._has_gradients(held))

    def _has_gradients(self, held: Mapping[str, nn.Parameter]) -> bool:
        """Whether one is not zero, on any rank."""
        gradients = [shard(each.grad, each) for each in held.values() if each.grad is not None]
        return any(self._ranks.all_gather(any(bool(each.any()) for each in gradients)))

    def _new_step(self, optimizer: torch.optim.Optimizer) -> Step:
        ranks = self._ranks
        ranks.together(self._calls.check)
        observed = self._observed(optimizer)
        if not self.steps:
            self._check_initial(ranks)
            rows = shapes(observed.window.calls)
            replicas = list(dict.fromkeys(row["device"] for row in rows if row["scope"] == "replica"))[1:]
            self._recording.laid_out(
                self._model, ranks, self._calls.strategy, replicas, optimizer=type(optimizer).__name__
            )
            self._recording.shapes(rows, ranks)
        step = begin(self._judge(self.steps + 1), observed, self._rules)
        self._rules = step.weighed.rules
        return step

    def _check_initial(self, ranks: LoopRanks) -> None:
        """Warn of ranks that were watched with other weights, where training does not start from rank 0's."""
        named = named_parameters(self._model)
        watched = ranks.all_gather(self._written_as)
        if any(each is None for each in watched) or all(each == watched[0] for each in watched):
            return
        now = checksums(OneByOne([*named], lambda name: full(named[name])))
        if now != watched[0]:
            self.warnings[
                "ranks were watched with other weights, and the first step does not start from rank 0's"
            ] = None

    def _check_others(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise FoundError for an optimizer of parameters that the layout has replaced."""
        held = {each for group in optimizer.param_groups for each in group["params"]}
        if held & set(self._written) and not held & set(self._model.parameters()):
            cause = "it was made before the layout replaced them: it trains nothing of this model"
            raise FoundError(
                LoopFinding(self.steps + 1, "optimizer", "it holds no parameter of the model", cause)
            )

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """What is computed inside changes nothing that a loop depends on, and no watch sees it."""
        watches = list(_on)
        for each in watches:
            each._calls.is_paused = True
        started = self._entered = time.perf_counter()
        try:
            with unchanged(self._model):
                yield
        finally:
            for each in watches:
                each._calls.is_paused = False
            self.seconds += time.perf_counter() - started

    def _guard(self, act: Callable[[], None]) -> None:
        """Compare; whatever that raises ends the watch, and the loop goes on.

        Raises VerificationError for a finding if the user wants it.
        """
        try:
            with self._quiet():
                act()
        except FoundError as found:
            self.findings.append(found.finding)
            self._end()
        except LostRankError as lost:
            self._give_up(str(lost))
        except Exception as error:  # it may be of this rank alone, as one that is out of memory
            why = str(error) if isinstance(error, NotComparableError) else describe(error)
            self._give_up(why)
            self._ranks.fail(why)
        if self.findings and self._options.raises:
            raise self.findings[0].error()

    def _give_up(self, why: str) -> None:
        self.note = f"step {self.steps + 1}: {why}"
        if self.steps:
            self.warnings[f"not compared from {self.note}"] = None
        self._end()

    # --- what was found ---

    def _conclude(self) -> None:
        reached, clip_norm = bool(self._calls.window.calls), self._options.clip_norm
        if not (self.steps or self.findings or self.note):
            if reached and self._other_steps:
                what = (
                    f"{plural(self._other_steps, 'step')} of optimizers that hold no parameter of the model"
                )
                if self._is_of_a_copy and not self._has_changed:
                    self.findings.append(LoopFinding(1, "optimizer", what, "it trains nothing of this model"))
                self.note = f"{what}: watch the model whose parameters torch.optim holds"
            else:
                self.note = (
                    f"{plural(self._calls.count, 'call')} of the model and no step of its optimizer with a "
                    "gradient: watch the module that the loop calls, and read the verdict after such a step"
                )
        self.warnings.update(dict.fromkeys(self._trained.warnings(self._model, self.steps)))
        if isinstance(clip_norm, int | float) and self.steps and not self._was_clipped:
            self.warnings["no gradient was larger than clip_norm: clipping was not compared"] = None
        self._recording.verified(self._verification())

    @property
    def _has_changed(self) -> bool:
        """Whether parameters are others than when the watch began, before any step is compared."""
        now = named_parameters(self._model)
        if any(hasattr(each, "placements") for each in now.values()):
            return True
        return self._written_as is None or checksums(now) != self._written_as

    def _verification(self) -> dict[str, Any]:
        """As in the Record."""
        errors, finding = self._errors, next(iter(self.findings), None)
        largest = max(errors.values(), key=lambda each: each.error, default=None)
        worst = finding.worst if finding is not None and finding.worst is not None else largest
        limits = [each.limit for each in errors.values() if math.isfinite(each.limit)]
        return {
            "checked": bool(self.steps or finding),
            "passed": finding is None if self.steps or finding else None,
            "steps": self.steps,
            **{key: errors[kind].error for key, kind in KINDS.items() if kind in errors},
            "tolerance": max(limits, default=None),
            "worst": row_of(worst),
            "note": "; ".join([*filter(None, [self.note]), *self.warnings]),
            "cause": str(finding) if finding is not None else "",
        }

    def _record(self, step: Step) -> None:
        now = time.perf_counter()
        started = self._started or min((call.begun for call in step.window.calls), default=now)
        spent = self.seconds + now - self._entered
        ms = (now - started - (spent - self._spent)) * 1e3
        self._recording.step(ms, step.loss, step.samples)
        self._recording.verified(self._verification())
        self._started, self._spent = now, spent


def _layout_of(model: nn.Module) -> str:
    """What the model, or a part of it, is wrapped in or sharded by; empty where it is as written."""
    for part in model.modules():
        if hasattr(part, "no_sync") or isinstance(part, nn.DataParallel | DataParallel | Wrapper):
            return type(part).__name__
    sharded = (name for name, each in model.named_parameters() if hasattr(each, "placements"))
    return next((f"'{name}' is a DTensor" for name in sharded), "")


def _refuse_closure() -> None:
    raise NotComparableError(
        "step(closure) calls the closure several times, as LBFGS does: its gradients are of other parameters"
    )


def _optimizers_in(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers in a list of this one, as torchtitan's container has them."""
    lists = [value for value in vars(optimizer).values() if isinstance(value, list)]
    return [each for each in chain.from_iterable(lists) if isinstance(each, torch.optim.Optimizer)]
