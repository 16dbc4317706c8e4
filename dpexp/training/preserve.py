"""Preserve: a module that computes and is afterwards as it was before."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
