"""After the forward parameters are split over two of the four ranks only."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=4"
MODELS = ("net",)


def parallelize(model, mesh):
    fully_shard(model.up, mesh=mesh, reshard_after_forward=2)
    return fully_shard(model, mesh=mesh, reshard_after_forward=2)
