"""Transformers' Trainer and Seq2SeqTrainer, and those of TRL, watched by a callback.

Trainer(..., callbacks=[WatchCallback()])     what the callback does

__init__              on_init_end             finds the trainer
train                 create_optimizer        begins the watch: the model is complete, and not laid out
  compute_loss                                observes the loss, where the model does not return it
  log                 on_log                  records the metrics
                      on_train_end            prints the verdict, ends the run
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch import nn
from transformers import Trainer, TrainerCallback

from dpexp import tensors
from dpexp.config.errors import ConfigError, NotComparableError
from dpexp.watch.loop import WatchedLoop
from dpexp.watch.options import Options

PAIRED = {"DPOTrainer", "RewardTrainer"}
"""Their batches are the chosen rows and then the rejected ones: half of the rows is not a batch."""
ONE_PROCESS = {"num_processes": 1, "process_index": 0, "distributed_type": DistributedType.NO}
"""Accelerate's state in which it gathers from this process alone, and a loss is not multiplied by ranks."""


class WatchCallback(TrainerCallback):
    """Watches the first ``steps`` optimizer steps of ``trainer.train()``, as ``dpexp.watch`` does.

    Give it to the trainer's constructor, on every rank. Metrics that the trainer logs go into the same run;
    the end of training prints the verdict. ``options`` are ``raises`` and ``weight`` of ``dpexp.watch``:
    a loss outside of the model has the arguments (outputs, inputs, ...). ``run`` is the watch, or None, and
    then ``note`` says why.

    Raises ConfigError for options that mean nothing, and where it is given to a trainer that exists already.
    """

    def __init__(self, steps: int = 4, name: str | None = None, track: bool = True, **options: Any) -> None:
        self.run: WatchedLoop | None = None
        self.note = ""
        self._options, self._name, self._track = Options(steps=steps, **options), name, track
        self._trainer: Trainer | None = None  # while it trains

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to watch when ``train`` makes the optimizer: it has not laid out the model then."""
        trainer = _under_construction()
        create = trainer.create_optimizer

        @wraps(create)
        def create_optimizer(*args: Any, **kwargs: Any) -> Any:
            del trainer.create_optimizer
            self._trainer = trainer
            self._begin(trainer)
            return create(*args, **kwargs)

        trainer.create_optimizer = create_optimizer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raise ConfigError where the watch could not begin."""
        if self._trainer is None and self.run is None and not self.note:
            raise ConfigError("give WatchCallback to the trainer's constructor: callbacks=[WatchCallback()]")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Record the numbers that the trainer logs while it trains."""
        if self.run is not None and self._trainer is not None:
            self.run.log(**{key: each for key, each in (logs or {}).items() if isinstance(each, int | float)})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Print the verdict, and end the run."""
        trainer, self._trainer = self._trainer, None
        if trainer is None:  # it has trained before
            return
        if self.run is not None:
            self.run.close()
        vars(trainer).pop("compute_loss", None)
        if state.is_world_process_zero:
            print(f"dpexp: {self.run or f'not watched: {self.note}'}")

    def _begin(self, trainer: Trainer) -> None:
        self.run, self.note = None, _refusal(trainer)
        weight = self._options.weight
        options = replace(self._options, weight=_weight(trainer) if weight is None else weight)
        try:
            if not self.note:
                self.run = WatchedLoop.begin(trainer.model, options, self._name, self._track)
        except ConfigError as error:
            self.note = str(error)
        if self.run is not None and options.weight is not False and not _is_inside(trainer):
            _observe_loss(trainer, self.run)


def _under_construction() -> Trainer:
    """The trainer whose constructor is calling: a callback does not get it."""
    frame: Any = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), Trainer):
        frame = frame.f_back
    return frame.f_locals["self"]


def _weight(trainer: Trainer) -> Any:
    """What a call counts. Another loss of TRL may depend on other batches: its weights are not compared."""
    kinds = (kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind))
    name = next((kind.__name__ for kind in kinds if kind.__module__.startswith("trl.")), "SFTTrainer")
    return _rows if name in PAIRED else None if name == "SFTTrainer" else False


def _rows(outputs: Any, inputs: Any, *_: Any, **__: Any) -> int:
    return next(len(each) for each in tensors.walk(inputs) if each.dim())


def _refusal(trainer: Trainer) -> str:
    """Why a trainer is not watched; empty for the others."""
    if trainer.is_deepspeed_enabled:
        return "DeepSpeed computes with copies of the parameters, and steps outside of torch.optim"
    is_flat = trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version == 1
    return "FSDP1 flattens the parameters: use FSDP2, fsdp_config={'version': 2}" if is_flat else ""


def _is_inside(trainer: Trainer) -> bool:
    """Whether the loss is what the model returns, as in ``Trainer.compute_loss`` without options."""
    is_own = getattr(trainer.compute_loss, "__func__", None) is Trainer.compute_loss
    return is_own and trainer.compute_loss_func is None and trainer.label_smoother is None


def _observe_loss(trainer: Trainer, run: WatchedLoop) -> None:
    """Observe ``compute_loss`` as a function of the model's outputs, until the watch is over.

    Scalars among the outputs are zeros to it: a loss that the model returns is observed there.
    """
    compute, called = trainer.compute_loss, trainer.model
    passes = list[bool]()  # of the calls of the model inside: whether they record gradients

    def loss_of(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if sum(passes) > 1:
            raise NotComparableError(f"compute_loss calls the model {sum(passes)} times")
        twin = object.__new__(type(trainer))  # compute_loss may log
        vars(twin).update(_apart(vars(trainer)))
        vars(twin).pop("compute_loss", None)
        own = compute.__func__.__get__(twin) if getattr(compute, "__self__", None) is trainer else compute
        state, of_accelerator = vars(PartialState()), vars(trainer.accelerator.state)
        with patch.dict(state, ONE_PROCESS), patch.dict(of_accelerator, ONE_PROCESS):
            model = _returning(called, outputs, trainer.model, passes)
            found = own(model, copy.copy(inputs), *args, **kwargs)
        return found[0] if isinstance(found, tuple) else found

    observed = run.observed(loss_of)

    @wraps(compute)
    def compute_loss(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if run.done or not torch.is_grad_enabled():
            return compute(model, inputs, *args, **kwargs)
        nonlocal called
        called, given = model, copy.copy(inputs)  # compute_loss may take labels out
        passes.clear()

        def seen(_: nn.Module, __: Any, outputs: Any) -> Any:
            passes.append(torch.is_grad_enabled())
            if not passes[-1] or sum(passes) > 1:
                return outputs
            scalars = [each for each in tensors.walk(outputs) if not each.dim()]
            arguments = _with_scalars([each.new_zeros(()) for each in scalars], outputs)
            (views, *_), _ = observed.seen(arguments, given, *args, **kwargs)
            return _with_scalars(scalars, views)

        handle = model.register_forward_hook(seen)
        try:
            return compute(model, inputs, *args, **kwargs)
        finally:
            handle.remove()

    trainer.compute_loss = compute_loss


def _with_scalars(scalars: Sequence[torch.Tensor], outputs: Any) -> Any:
    following = iter(scalars)
    return tensors.map_tensors(lambda each: each if each.dim() else next(following), outputs)


def _returning(model: nn.Module, outputs: Any, within: nn.Module, passes: Sequence[bool]) -> nn.Module:
    """The model, whose call that records gradients returns these outputs; others are those of ``within``."""
    following = iter(passes)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if next(following, False):
            return outputs
        with torch.no_grad():
            return within(*args, **kwargs)

    hooks = {key: OrderedDict[int, Any]() for key in vars(model) if key.endswith("_hooks")}
    stub: nn.Module = object.__new__(type(model))  # a copy of an FSDPModule would be initialized
    vars(stub).update(vars(model) | hooks | {"forward": forward})
    return stub


def _apart(value: Any) -> Any:
    """A container with the same entries, so that what is appended to it is not in the other."""
    if type(value) in (dict, defaultdict):
        return tensors.rebuild(value, map(_apart, value.values()))
    return copy.copy(value) if type(value) in (list, set, deque) else value
