"""FSDP2: ``up`` is sharded by itself; its gradients are kept on the rank until they are wanted."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, mesh):
    fully_shard(model.up, mesh=mesh["dp"]).set_requires_gradient_sync(False)
    return fully_shard(model, mesh=mesh["dp"])
