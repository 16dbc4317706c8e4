"""Preserve: a module that computes as it is written, and is afterwards as it was before."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn


@contextmanager
def preserved(module: nn.Module, used: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the module's buffers, gradients and counts, and the random states of host and ``used``."""
    saved = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    counts = [(vars(part), _counts(part)) for part in module.modules()]
    cuda = sorted({device.index or 0 for device in used if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            for part in module.modules():
                for key in _counts(part):
                    del vars(part)[key]
            for attributes, of_part in counts:
                attributes.update(of_part)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if name in saved and saved[name].shape == buffer.shape:  # else a lazy cache has grown
                        buffer.copy_(saved[name])


def _counts(part: nn.Module) -> dict[str, int | float]:
    """The numbers that a user's module has as attributes: of its forwards, to know when to synchronize."""
    if type(part).__module__.startswith("torch."):
        return {}
    return {key: value for key, value in vars(part).items() if type(value) in (int, float)}


def eager(module: nn.Module) -> AbstractContextManager[Any]:
    """Compiled modules run as they are written: the compiler would trace the hooks."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else nullcontext()


def is_compiled(module: nn.Module) -> bool:
    """Whether the module, or one in it, is compiled."""
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl for each in module.modules())
