"""Tensor parallelism: each rank draws the numbers of its columns of ``up`` itself, from the seed of the model."""

from models import initial_up
from pieces import Ranks, compute


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    own = model.up.weight
    own.data.copy_(initial_up(len(own)))
    compute(model.up, before=tp.copy)
    compute(model.down, after=tp.reduce)
    return model
