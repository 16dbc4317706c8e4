"""Tensor parallelism: ``up`` by columns, ``down`` by rows, with the all-reduce of ``torch.distributed.nn``."""

from functools import partial

from pieces import Ranks, compute
from torch.distributed.nn.functional import all_reduce


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.up, before=tp.copy)
    compute(model.down, after=partial(all_reduce, group=tp.group))
    return model
