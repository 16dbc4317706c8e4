"""Tensor parallelism: ``up`` by columns and ``down`` by rows. The input of ``up`` is the same on every rank."""

from pieces import Ranks, compute


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.down, after=tp.reduce)
    return model
