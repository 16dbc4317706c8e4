"""Diagnosis: what ended a run, what to do about it, and which module made the first NaN or infinity."""

import re
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

from torch import nn

from dpexp.config.errors import describe, text_of
from dpexp.engine.prepare import Prepared, prepare
from dpexp.strategies.modules.wrappers import Wrapper, parts
from dpexp.tensors import walk
from dpexp.timing import Timer

ADVICE = {
    r"Expected more than 1 value per channel": (
        "BatchNorm needs two rows in every shard: use a --batch-size of at least twice the devices, "
        "one whose last batch of an epoch is not smaller, or fewer devices"
    ),
    r"out of memory": "use a smaller --batch-size, or more devices",
    r"does not require grad": "the loss depends on no parameter: --eval runs the model forward only",
    r"modified by an inplace operation": (
        "a module writes into a tensor that autograd still needs: replace the in-place operation"
    ),
    r"mark a variable ready only once": (
        "DistributedDataParallel knows reentrant checkpointing only of modules that are called once, and "
        "without --find-unused: give torch.utils.checkpoint use_reentrant=False"
    ),
    r"deterministic": "an operation has no deterministic implementation on this device",
}
"""What to do about an error, by a pattern that its message matches."""


def explained(error: BaseException) -> str:
    """What ended a run: the exception, the line of the user's code that raised it, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was measured is recorded"
    message = text_of(error)
    if type(error).__module__.startswith("dpexp."):
        return message
    advice = next((f": {text}" for pattern, text in ADVICE.items() if re.search(pattern, message)), "")
    return describe(error) + advice


def nonfinite_source(prepared: Prepared, step: int) -> str:
    """Which module's output is the first with a NaN or infinity in a step, whose loss is not finite.

    Trains a new model from the same seed up to that step, because the run's own weights have changed since.
    """
    replay = prepare(prepared.config, group=prepared.group)
    trainer = replay.trainer(replay.strategy.place(replay.model, replay.selection.used, Timer()))
    for steps in (replay.config.warmup, step):
        trainer.take_steps(islice(replay.endless_batches(), steps))
    names: list[str] = []

    def check(name: str, module: nn.Module, args: Any, outputs: Any) -> None:
        if not all(tensor.isfinite().all() for tensor in walk(outputs)):
            names.append(name)

    with ExitStack() as hooks:
        for part in parts(trainer.placed.module):
            if not isinstance(part.module, Wrapper):
                hooks.enter_context(part.module.register_forward_hook(partial(check, part.name)))
        trainer.step(next(islice(replay.endless_batches(), step, None)))
    if not names:
        return "the loss"
    return f"module '{names[0]}'" if names[0] else "the model itself"
