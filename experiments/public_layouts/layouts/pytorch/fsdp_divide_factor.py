"""Gradients are divided by a factor that is the number of ranks, as by default."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)
    model.set_gradient_divide_factor(2.0)
    return model
