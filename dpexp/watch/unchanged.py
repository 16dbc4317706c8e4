"""Unchanged: what is computed inside leaves the loop as it was: random numbers, gradient mode, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from dpexp.data.rng import kept_globals


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
