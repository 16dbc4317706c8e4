"""Holders: among all modules of a program, the one that holds a part, or an optimizer's parameters."""

from __future__ import annotations

import gc

from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The module itself, where torch.compile has wrapped it."""
    return model._modules.get("_orig_mod") or model


def outermost(part: nn.Module) -> nn.Module:
    """The largest module that holds the part."""
    holders = [each for each in _live() if any(inside is part for inside in each.modules())]
    return max(holders, key=lambda each: len(list(each.modules())), default=part)


def holder_of(parameters: set[int]) -> nn.Module | None:
    """The module that holds most of these; of several the smallest by what is trainable, and outermost."""
    found = []
    for module in _live():
        held = {id(each): each.requires_grad for each in module.parameters()}
        if common := len(held.keys() & parameters):
            found.append((-common, sum(held.values()), -len(list(module.modules())), module))
    return min(found, key=lambda each: each[:3])[3] if found else None


def _live() -> list[nn.Module]:
    """The modules that can be called."""
    containers = nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    complete = [each for each in modules if "_modules" in vars(each) and uncompiled(each) is each]
    return [each for each in complete if not isinstance(each, containers)]
