"""Tensor parallelism: ``up`` by columns, ``down`` by rows; each rank adds its part to the residual stream."""

from pieces import Ranks, compute


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.up, before=tp.copy)
    compute(model.down)
    return model
