"""fully_shard of the whole alone."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net", "text")


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh)
