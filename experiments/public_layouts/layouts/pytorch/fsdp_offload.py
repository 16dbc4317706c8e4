"""Shards, their gradients and the optimizer's state are on the host."""

from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    policy = CPUOffloadPolicy(pin_memory=False)
    return fully_shard(model, mesh=mesh, offload_policy=policy)
