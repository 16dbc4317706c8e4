"""FSDP2: the weights of ``norm`` are small, and are not sharded."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh["dp"], ignored_params=set(model.norm.parameters()))
