"""Parameters split over two ranks, and two replicas of that."""

from torch.distributed.fsdp import fully_shard

MESH = "dp_replicate=2,dp_shard=2"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model.up, mesh=mesh)
    return fully_shard(model, mesh=mesh)
