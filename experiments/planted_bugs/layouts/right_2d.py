"""Hybrid: tensor parallelism along ``tp``, data parallelism along ``dp``."""

from pieces import Ranks, change_gradients, compute


def parallelize(model, mesh):
    dp, tp = Ranks(mesh, "dp"), Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.up, before=tp.copy)
    compute(model.down, after=tp.reduce)
    change_gradients(model.parameters(), dp.mean)
    return model
