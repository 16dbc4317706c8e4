"""Right on copies in float64, and wrong in a run: only in its type, or from a later step on."""

import torch
from catalogue import wrong
from pieces import changed_output
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
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


# --- in the type of the run alone ---------------------------------------------------------------------------


@wrong("replicas", kind="parameters", words="in float32")
def rounded_weights(model):
    """The weights of float32 are rounded to bfloat16 when they are laid out."""
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data.copy_(parameter.data.bfloat16().float())


@wrong("replicas", model="nets:Norms", module="norm", kind="buffers", words="buffers (norm.running_mean")
def statistics_in_float32(model):
    """In float32 the batch norm has momentum 0.2."""
    model.norm.momentum = 0.2 if model.first.weight.dtype == torch.float32 else 0.1


@wrong("host", autocast="bfloat16", module="second", kind="outputs", words="the run's own first steps")
def scaled_under_autocast(model):
    """The output of `second` is 5% too large under autocast."""
    changed_output(model.second, lambda x: x * 1.05 if torch.is_autocast_enabled("cpu") else x)


@wrong("ranks", module="third", kind="gradients")
def compressed_gradients(model):
    """The gradients are sent as float16, which is 1e-3 off."""
    laid_out = DistributedDataParallel(model)
    laid_out.register_comm_hook(None, fp16_compress_hook)
    return laid_out
