"""Only in the type in which the run computes, and not in float64."""

import torch
from catalogue import bug
from over import by_bucket

EVERY = ("host", "replicas", "ranks", "shards")


def changed_output(module, change):
    """Change what a module returns."""
    module.register_forward_hook(lambda module, args, output: change(output))


def changed_gradient(parameter, change):
    """Change the gradient of a parameter as it is computed."""
    parameter.register_hook(change)


@bug(*EVERY)
def scaled_in_float32(model):
    """The output of `second` is 1% too large where it is float32."""
    changed_output(model.second, lambda x: x * 1.01 if x.dtype == torch.float32 else x)


@bug(*EVERY)
def computed_in_bfloat16(model):
    """`second` computes its input in bfloat16 and says float32."""
    changed_output(model.first, lambda x: x.bfloat16().float() if x.dtype == torch.float32 else x)


@bug("host", "replicas", "ranks")
def gradient_in_float32(model):
    """The gradient of `first.weight` is halved where it is float32."""
    changed_gradient(model.first.weight, lambda g: g / 2 if g.dtype == torch.float32 else g)


@bug("host", "ranks")
def gradient_in_float16(model):
    """Gradients of float32 are rounded to float16 on their way."""
    for parameter in model.parameters():
        changed_gradient(parameter, lambda g: g.half().float() if g.dtype == torch.float32 else g)


@bug("host", "replicas", "ranks")
def rounded_weights(model):
    """The weights of float32 are rounded to bfloat16 when they are laid out."""
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data.copy_(parameter.data.bfloat16().float())


@bug("host", "replicas", "ranks", dtype="bfloat16")
def scaled_in_bfloat16(model):
    """The output of `second` is 5% too large where it is bfloat16."""
    changed_output(model.second, lambda x: x * 1.05 if x.dtype == torch.bfloat16 else x)


@bug("host", "replicas", "ranks", autocast="bfloat16")
def scaled_under_autocast(model):
    """The output of `second` is 5% too large under autocast."""
    changed_output(model.second, lambda x: x * 1.05 if torch.is_autocast_enabled("cpu") else x)


@bug("host", "ranks")
def fast_path_in_float32(model):
    """The fast path of float32 forgets the bias of `third`."""
    slow = model.third.forward

    def forward(x):
        return x @ model.third.weight.T + 0 * model.third.bias if x.dtype == torch.float32 else slow(x)

    model.third.forward = forward


@bug("ranks")
def summed_in_float32(model):
    """In float32 the ranks' gradients are added up and not divided."""
    from torch.distributed import all_reduce

    def change(gradient):
        if gradient.dtype != torch.float32:
            gradient = gradient / 2
        all_reduce(gradient)
        return gradient

    return by_bucket(model, change)


@bug("ranks")
def compressed_gradients(model):
    """The gradients are sent as float16, which is 1e-3 off."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    laid_out = DistributedDataParallel(model)
    laid_out.register_comm_hook(None, fp16_compress_hook)
    return laid_out
