"""fully_shard on a mesh of one rank."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=1"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model.up, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])
