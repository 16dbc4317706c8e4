"""fully_shard of the parts and of the whole."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    for part in (model.up, model.down):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)
