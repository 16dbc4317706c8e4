"""Models whose training ends in an unusual way, for test_ends.py."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

import torch
from torch import Tensor, nn
from user_error_cases import Model, Stop, WordlessError

STEPS = 30


class Ending(Model):
    """Calls ``end`` in training step ``STEPS``."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def forward(self, x: Tensor) -> Any:
        if not self.training or not torch.is_grad_enabled() or x.dtype != torch.float32:
            return super().forward(x)
        if self.done == STEPS - 1:
            self.done += 1
            self.end()
        outputs: Any = super().forward(x)
        outputs.register_hook(self._count)  # not each forward is of a step: some are observed only
        return outputs

    def _count(self, gradient: Tensor) -> None:
        self.done += 1

    def end(self) -> None:
        raise NotImplementedError


class SignalPair(Ending):
    """Receives a signal, and a second one at the given call of a function after it."""

    def __init__(self, first: str, second: str, call: int) -> None:
        super().__init__()
        self.signals, self.left = (signal.Signals[first], signal.Signals[second]), call

    def end(self) -> None:
        sys.setprofile(self.count)
        os.kill(os.getpid(), self.signals[0])

    def count(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), self.signals[1])


def signal_pair(call: int, first: str = "SIGINT", second: str = "SIGTERM") -> nn.Module:
    return SignalPair(first, second, call)


class Swallowing(Ending):
    """Receives SIGINT, and swallows its exception."""

    def end(self) -> None:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)


class Raising(Ending):
    """Raises an exception that is not an Exception, or one that has no text."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = [error]

    def __deepcopy__(self, memo: Any) -> Raising:
        copied = Raising(self.error[0])
        copied.load_state_dict(self.state_dict())
        return copied

    def end(self) -> None:
        raise self.error[0]


def stopping() -> nn.Module:
    return Raising(Stop("that is all"))


def generator_exit() -> nn.Module:
    return Raising(GeneratorExit())


def wordless() -> nn.Module:
    return Raising(WordlessError())


def nested_wordless() -> nn.Module:
    error = KeyError(WordlessError())
    error.__cause__ = WordlessError()
    return Raising(error)


class Forking(Ending):
    """Forks a process that holds what it inherits until the parent's end, and kills the parent."""

    def end(self) -> None:
        if os.fork() == 0:
            os.setsid()
            signal.alarm(120)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)


class Returning(Ending):
    """Forks a process that trains on, and one that calls sys.exit."""

    def end(self) -> None:
        for leave in (lambda: None, sys.exit):
            child = os.fork()
            if child == 0:
                leave()
                return
            os.waitpid(child, 0)
