"""Gradients are summed and divided afterwards, never averaged while they are reduced."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)
    model.set_force_sum_reduction_for_comms(True)
    model.set_gradient_divide_factor(2.0)
    return model
