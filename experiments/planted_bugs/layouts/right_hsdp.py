"""FSDP2 over two dimensions: parameters are sharded along ``dp_shard`` and replicated along ``dp_replicate``."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh["dp_replicate", "dp_shard"])
