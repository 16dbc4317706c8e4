"""Parameters are split again after the forward, the root's too."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model.up, mesh=mesh, reshard_after_forward=True)
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)
