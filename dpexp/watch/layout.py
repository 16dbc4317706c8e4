"""Layout: what a user has made of a model, by the types of modules and parameters."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpexp.parallel.data_parallel import DataParallel
from dpexp.record.journal import WATCH_STRATEGY
from dpexp.strategies.modules import Wrapper


def layout_of(model: nn.Module) -> str:
    """What the model, or a part of it, is wrapped in or sharded by; empty where it is as written."""
    for part in model.modules():
        if hasattr(part, "no_sync") or isinstance(part, nn.DataParallel | DataParallel | Wrapper):
            return type(part).__name__
    sharded = (name for name, each in model.named_parameters() if hasattr(each, "placements"))
    return next((f"'{name}' is a DTensor" for name in sharded), "")


def strategy_of(module: nn.Module) -> str:
    """The strategy whose wrapper is calling the module, where that is plain, or else ``watch``."""
    if getattr(module, "_is_replica", False):
        return "whole"
    if hasattr(module, "_get_fsdp_state"):
        return "fsdp"
    is_in_ddp = getattr(DistributedDataParallel, "_active_ddp_module", None) is not None
    return "ddp" if is_in_ddp else WATCH_STRATEGY
