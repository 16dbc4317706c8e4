"""Sharded parameters: each rank gathers ``up`` beginning with its own part."""

from pieces import Ranks, change_gradients, compute, function


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    change_gradients([each for name, each in model.named_parameters() if "up" not in name], dp.mean)
    dp.shard(model, {"up.weight": 0, "up.bias": 0})

    def joined(x):
        return dp.joined(x, dim=0).roll(-dp.rank * len(x), dims=0)

    def unshard(x):
        return function(x, joined, lambda gradient: dp.part(dp.mean(gradient), dim=0))

    compute(model.up, weight=unshard, bias=unshard)
    return model
