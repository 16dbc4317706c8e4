"""Tensor parallelism: ``up`` by columns, ``down`` by rows; one all-reduce after the pair, one before it in backward."""

from pieces import Ranks, compute


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.up, before=tp.copy)
    compute(model.down, after=tp.reduce)
    return model
