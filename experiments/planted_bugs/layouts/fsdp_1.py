"""Sharded parameters: the gradients of ``up`` are added up over the ranks, and each rank takes its part."""

from functools import partial

from pieces import Ranks, change_gradients, compute, function


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    change_gradients([each for name, each in model.named_parameters() if "up" not in name], dp.mean)
    dp.shard(model, {"up.weight": 0, "up.bias": 0})

    def unshard(x):
        return function(x, partial(dp.joined, dim=0), lambda gradient: dp.part(dp.sum(gradient), dim=0))

    compute(model.up, weight=unshard, bias=unshard)
    return model
