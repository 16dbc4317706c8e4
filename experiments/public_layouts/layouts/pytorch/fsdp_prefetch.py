"""The next part's parameters are gathered before they are needed, in forward and backward."""

from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    parts = [fully_shard(part, mesh=mesh) for part in (model.up, model.down)]
    parts[0].set_modules_to_forward_prefetch([parts[1]])
    parts[1].set_modules_to_backward_prefetch([parts[0]])
    return fully_shard(model, mesh=mesh)
