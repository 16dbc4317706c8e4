"""Begins late: with a call, a step, an epoch or a placement that comes after the proof on copies."""

import torch
from catalogue import wrong
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CACHE = {}


@wrong("shards", module="second", kind="outputs")
def cached_weight(model):
    """The first float32 weight of `second` is kept in the file, and is stale from the second step on."""

    def forward(x):
        weight = model.second.weight
        kept = CACHE.setdefault("weight", weight.detach().clone())
        return functional.linear(x, weight + (kept - weight).detach(), model.second.bias)

    if model.second.weight.dtype == torch.float32:
        model.second.forward = forward


@wrong("ranks", module="third", kind="gradients")
def powersgd(model):
    """PowerSGD compresses the gradients, from the tenth step on."""
    laid_out = DistributedDataParallel(model)
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 10, "min_compression_rate": 1}
    state = powerSGD_hook.PowerSGDState(None, **options)
    laid_out.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return laid_out


@wrong("ranks", module="first", kind="parameters", words="the ranks have trained apart")
def post_local_sgd(model):
    """After eight steps the gradients are averaged within each host's subgroup alone: here, within a rank."""
    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    laid_out = DistributedDataParallel(model)
    own = alone[distributed.get_rank()]
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=8)
    laid_out.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return laid_out
