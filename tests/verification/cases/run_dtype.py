"""Only in the type in which the run computes, and not in float64."""

import torch
from catalogue import wrong
from pieces import by_bucket, changed_output
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


@wrong("replicas", kind="parameters")
def rounded_weights(model):
    """The weights of float32 are rounded to bfloat16 when they are laid out."""
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data.copy_(parameter.data.bfloat16().float())


@wrong("replicas", model="nets:Norms", module="norm", kind="buffers", words="buffers (norm.running_mean")
def statistics_in_float32(model):
    """In float32 the batch norm has momentum 0.2."""
    model.norm.momentum = 0.2 if model.first.weight.dtype == torch.float32 else 0.1


@wrong("host", autocast="bfloat16", module="second", kind="outputs")
def scaled_under_autocast(model):
    """The output of `second` is 5% too large under autocast."""
    changed_output(model.second, lambda x: x * 1.05 if torch.is_autocast_enabled("cpu") else x)


@wrong("ranks", module="third", kind="gradients")
def summed_in_float32(model):
    """In float32 the ranks' gradients are added up and not divided."""

    def change(gradient):
        distributed.all_reduce(gradient)
        return gradient if gradient.dtype == torch.float32 else gradient / 2

    return by_bucket(model, change)


@wrong("ranks", module="third", kind="gradients")
def compressed_gradients(model):
    """The gradients are sent as float16, which is 1e-3 off."""
    laid_out = DistributedDataParallel(model)
    laid_out.register_comm_hook(None, fp16_compress_hook)
    return laid_out
