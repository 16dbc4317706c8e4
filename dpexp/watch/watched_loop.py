"""Watched loop: the hooks around a user's training loop, its steps, and its verdict."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dpexp.config.errors import ConfigError, NotComparableError, describe
from dpexp.config.words import listed, plural
from dpexp.parallel.data_parallel import DataParallel
from dpexp.strategies.modules import Wrapper, named_parameters
from dpexp.verification.compare import Difference
from dpexp.verification.result import KINDS, row_of
from dpexp.watch.calls import Hook, LoopCalls, ObservedLoss, full
from dpexp.watch.explain import FoundError, LoopFinding, sampled
from dpexp.watch.options import Options
from dpexp.watch.program import shapes
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.recording import Recording
from dpexp.watch.replay import Replay, unchanged
from dpexp.watch.step import LoopStep, digests, held_by

_watched: weakref.WeakSet[WatchedLoop] = weakref.WeakSet()
_scaler_step = torch.amp.GradScaler.step


class WatchedLoop:
    """See ``dpexp.watch``. ``findings`` are wrong, ``warnings`` may be meant, ``note`` says what ended it.

    ``loss`` is the user's, observed. ``steps`` were compared, and took ``seconds`` more than unwatched ones.
    """

    def __init__(self, model: nn.Module, options: Options, recording: Recording, replay: Replay) -> None:
        self.loss = options.loss
        self.findings: list[LoopFinding] = []
        self.warnings: dict[str, None] = {}
        self.note, self.steps, self.seconds = "", 0, 0.0
        self._model, self._options, self._wanted = model, options, options.steps
        self._recording, self._replay = recording, replay
        self._written: weakref.WeakSet[nn.Parameter] = weakref.WeakSet(model.parameters())
        self._calls = LoopCalls(model, self._remove, self._forget_step)
        if options.loss is not None:
            self.loss = ObservedLoss(options.loss, self._calls)
        is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._ranks = LoopRanks() if is_initialized else None  # every rank is here; at a step one may not be
        self._step: LoopStep | None = None
        self._residue: dict[str, torch.Tensor] = {}
        self._held: set[str] = set()
        self._stepping: torch.optim.Optimizer | None = None
        self._inside = 0
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._other_steps = self._window = 0
        self._started = self._spent = self._entered = 0.0
        self._is_scaled = self._was_clipped = self._may_be_skipped = False
        self._errors = dict[str, Difference]()
        self._handles: list[Any] = []
        self._hooks: list[Hook] = []
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
        stated = {key: getattr(options, key) for key in ("clip_norm", "weight", "steps", "raises")}
        replay = Replay(model)
        return cls(model, options, Recording.begin(model, name, stated) if track else Recording(), replay)

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

    # --- hooks ---

    def _observe(self) -> None:
        self.done, self._stepping, self._inside = False, None, 0
        self._started, self._spent = 0.0, self.seconds
        self._hooks = [Hook(self._before_step), Hook(self._after_step)]
        self._handles = [
            register_optimizer_step_pre_hook(self._hooks[0]),
            register_optimizer_step_post_hook(self._hooks[1]),
        ]
        self._calls.observe()
        _watched.add(self)
        torch.amp.GradScaler.step = _step_of_scaler  # type: ignore[method-assign, assignment]

    def _end(self) -> None:
        """See nothing more. The hooks of optimizers go at the next forward: a step may call them now."""
        if self.done:
            return
        self.done = True
        self._conclude()
        self._calls.end()
        for hook in self._hooks:
            hook.act = None
        _watched.discard(self)
        if not _watched:
            torch.amp.GradScaler.step = _scaler_step  # type: ignore[method-assign]
        self._replay.release()
        self._step, self._residue = None, {}

    def _forget_step(self) -> None:
        """A step that has raised is over when the model is called again: its gradients are used up."""
        if self._stepping is not None:
            self._calls.end_window()
        self._stepping, self._inside = None, 0

    def _remove(self) -> None:
        self._calls.remove_hooks()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def _is_idle(self) -> bool:
        return self.done or self._calls.is_paused

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_idle:
            return
        self._may_be_skipped = False
        if self._stepping is optimizer:  # step of a class calls that of its base, which is hooked, too
            self._inside += 1
            return
        if self._stepping is not None:  # one inside another, as in ZeroRedundancyOptimizer
            return
        self._stepping = optimizer
        held = held_by(optimizer, self._model)
        if not held:
            self._other_steps += 1
            self._guard(lambda: self._check_others(optimizer))
        elif any(callable(each) for each in (*args, *kwargs.values())):
            self._guard(_refuse_closure)
        else:
            self._guard(lambda: self._begin(optimizer, held))

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_idle or optimizer is not self._stepping:
            return
        if self._inside:
            self._inside -= 1
            return
        self._stepping = None
        self._calls.end_window()
        held = held_by(optimizer, self._model) if self._step is not None else {}
        if held:
            self._guard(lambda: self._complete(optimizer, held))

    def _begin(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Compare the gradients, before the optimizer's step."""
        if self._step is None or self._window != self._calls.windows:
            self._step = None  # its memory
            self._window, self._step = self._calls.windows, self._new_step(optimizer)
            self._stepped.clear()
        elif optimizer in self._stepped:
            self._refuse_again(held)
            return
        self._stepped.add(optimizer)
        self._step.compare_gradients(optimizer, held)

    def _refuse_again(self, held: Mapping[str, nn.Parameter]) -> None:
        """Raise FoundError for gradients that are used twice; a step without any is left out."""
        self._stepping = None
        assert self._ranks is not None
        gradients = [full(each.grad) for each in held.values() if each.grad is not None]
        if any(self._ranks.all_gather(any(bool(each.any()) for each in gradients))):
            cause = "zero_grad is missing, or step is called twice"
            what = "it steps again with the same gradients, without a backward of the model"
            raise FoundError(LoopFinding(self.steps, "optimizer", what, cause))

    def _complete(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Compare the update, after the optimizer's step."""
        step = self._step
        assert step is not None
        step.compare_update(optimizer, held)
        self._residue |= sampled(step.found)
        self._held |= held.keys()
        self._calls.drop_others()
        if step.number > self.steps:  # else another optimizer has completed it
            self.steps = step.number
            self._record(step)
        if self.steps >= self._wanted:
            self._end()

    def _new_step(self, optimizer: torch.optim.Optimizer) -> LoopStep:
        if self._ranks is None:
            self._ranks = LoopRanks()
        ranks = self._ranks
        ranks.meet()
        ranks.together(self._calls.check)
        calls, losses = self._calls.window
        own = self._model, self._options, ranks, self._replay, self._errors
        step = LoopStep(self.steps + 1, *own, calls, losses, self._residue, self.warnings)
        step.is_scaled = self._is_scaled
        if not self.steps:
            self._check_initial(ranks)
            rows = shapes(calls)
            replicas = list(dict.fromkeys(row["device"] for row in rows if row["scope"] == "replica"))[1:]
            self._recording.laid_out(
                self._model, ranks, self._calls.strategy, replicas, optimizer=type(optimizer).__name__
            )
            self._recording.shapes(rows, ranks)
        step.begin()
        self._was_clipped |= step.was_clipped
        return step

    def _check_initial(self, ranks: LoopRanks) -> None:
        """Warn of ranks that were watched with other weights, where training does not start from rank 0's."""
        is_meta = any(each.is_meta for each in self._replay.parameters.values())
        if any(ranks.all_gather(is_meta)):
            return
        watched = ranks.all_gather(digests(self._replay.parameters))
        full_ones = {name: full(each) for name, each in named_parameters(self._model).items()}
        if any(each != watched[0] for each in watched) and digests(full_ones) != watched[0]:
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
        watches = list(_watched)
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
        except NotComparableError as why:
            self._give_up(str(why))
        except Exception as error:  # of a rank that does not come to this step, for one
            self._give_up(describe(error))
        if self.findings and self._options.raises:
            raise self.findings[0].error()

    def _give_up(self, why: str) -> None:
        self.note = f"step {self.steps + 1}: {why}"
        if self.steps:
            self.warnings[f"not compared from {self.note}"] = None
        self._end()

    # --- what was found ---

    def _conclude(self) -> None:
        reached, clip_norm = bool(self._calls.window[0]), self._options.clip_norm
        if not (self.steps or self.findings or self.note):
            if reached and self._other_steps:
                what = (
                    f"{plural(self._other_steps, 'step')} of optimizers that hold no parameter of the model"
                )
                self.findings.append(LoopFinding(1, "optimizer", what, "it trains nothing of this model"))
            else:
                self.note = (
                    f"{plural(self._calls.count, 'call')} of the model and no step of its optimizer: "
                    "watch the module that the loop calls, and read the verdict after a step of torch.optim"
                )
        trained = (name for name, each in named_parameters(self._model).items() if each.requires_grad)
        left = [name for name in trained if name not in self._held] if self.steps > 1 else []
        if left:
            self.warnings[f"no optimizer that stepped holds {listed(left)}"] = None
        if isinstance(clip_norm, int | float) and self.steps and not self._was_clipped:
            self.warnings["no gradient was larger than clip_norm: clipping was not compared"] = None
        self._recording.verified(self._verification())

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

    def _record(self, step: LoopStep) -> None:
        now = time.perf_counter()
        started = self._started or min((call.begun for call in step.calls), default=now)
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
        "step(closure) computes gradients inside the optimizer: call backward before step, as loops of other "
        "optimizers do"
    )


def _step_of_scaler(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """``GradScaler.step``: one that is skipped because gradients overflow has used them up, too."""
    watches = [each for each in _watched if held_by(optimizer, each._model)]
    for each in watches:
        each._may_be_skipped, each._is_scaled = True, scaler.is_enabled()
    found = _scaler_step(scaler, optimizer, *args, **kwargs)
    for each in watches:
        if each._may_be_skipped and not each.done:
            each._may_be_skipped = False
            each._calls.end_window()
            each.warnings["GradScaler skipped a step: it was not compared"] = None
    return found
