"""Tensor parallelism: rank 0 has loaded the weights of ``first``; the other ranks start from new ones."""

from pieces import Ranks, compute


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    if tp.rank > 0:
        model.first.reset_parameters()
    compute(model.up, before=tp.copy)
    compute(model.down, after=tp.reduce)
    return model
