"""FSDP2: ``up`` and ``down`` are gathered together, and the rest with the model."""

from torch.distributed.fsdp import fully_shard


def parallelize(model, mesh):
    fully_shard([model.up, model.down], mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])
