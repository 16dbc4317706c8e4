"""FSDP2: the gradients of ``down`` are divided by the product of what they are multiplied with, which is 1."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, mesh):
    fully_shard(model.down, mesh=mesh["dp"]).set_gradient_divide_factor(1.0)
    return fully_shard(model, mesh=mesh["dp"])
