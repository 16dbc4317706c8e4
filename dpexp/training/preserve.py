"""Preserve: a module that computes and is afterwards as it was before."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserved(module: nn.Module, used: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the module's buffers and gradients, and the random states of the host and of ``used``."""
    saved = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    cuda = sorted({device.index or 0 for device in used if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if name in saved and saved[name].shape == buffer.shape:  # else a lazy cache has grown
                        buffer.copy_(saved[name])
