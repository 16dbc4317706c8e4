"""On a mesh of one rank: gradients are twice as large, as of two data ranks, and a factor divides them by two."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=1"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)
    model.set_gradient_divide_factor(2.0)
    model.register_forward_hook(twice)
    return model


def twice(model, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: 2 * gradient)
