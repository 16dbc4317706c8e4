"""Preserve: a module that computes as it is written, and is afterwards as it was before."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn


@contextmanager
def preserved(module: nn.Module, used: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore what a forward may change, gradients, and the random states of host and ``used``."""
    saved = {name: tensor.detach().clone() for name, tensor in _written(module).items()}
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    attributes = [(part, dict(vars(part)), _registered(part)) for part in module.modules() if is_users(part)]
    cuda = sorted({device.index or 0 for device in used if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            for part, before, registered in attributes:
                if registered == _registered(part):  # else its first forward has made it
                    vars(part).clear()
                    vars(part).update(before)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for name, tensor in _written(module).items():
                    if name in saved and saved[name].shape == tensor.shape:  # else a lazy cache has grown
                        tensor.copy_(saved[name])


def _written(module: nn.Module) -> dict[str, torch.Tensor]:
    """What a forward may write in place: buffers, and tables whose rows it scales to a largest norm."""
    tables = {
        f"{name}.weight": part.weight
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
    }
    return dict(module.named_buffers()) | tables


def is_users(part: nn.Module) -> bool:
    """Whether a user wrote it: its attributes may count its forwards, or keep a state between them.

    FSDP2 adds a class of its own to the user's.
    """
    return not all(kind.__module__.startswith("torch.") for kind in type(part).__mro__[:-1])


def _registered(part: nn.Module) -> set[str]:
    return {*part._parameters, *part._buffers, *part._modules}


def uncompiled(module: nn.Module) -> AbstractContextManager[Any]:
    """Compiled modules run as they are written: the compiler would trace the hooks."""
    return torch.compiler.set_stance("force_eager") if is_compiled(module) else nullcontext()


def is_compiled(module: nn.Module) -> bool:
    """Whether the module, or one in it, is compiled."""
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl for each in module.modules())
