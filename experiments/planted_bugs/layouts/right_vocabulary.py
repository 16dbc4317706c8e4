"""Vocabulary parallelism: each rank has a range of the ids, in the table and in the head, which is tied to it."""

from pieces import Ranks, change_gradients, lookup, only
from torch.nn.functional import linear


def parallelize(model, mesh):
    tp, weight = Ranks(mesh, "tp"), model.table.weight
    rows = tp.own_range(len(weight))
    model.table.forward = lambda ids: tp.reduce(lookup(weight, ids, rows))
    model.head.forward = lambda x: tp.reduce(linear(tp.copy(x), only(weight, rows)))
    change_gradients([weight], tp.sum)
    return model
