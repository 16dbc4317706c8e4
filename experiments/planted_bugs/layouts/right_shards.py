"""Sharded parameters: ``up`` and ``down`` are gathered for the forward; the others are averaged."""

from pieces import Ranks, change_gradients, compute


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    replicated = [
        each for name, each in model.named_parameters() if name.partition(".")[0] not in ("up", "down")
    ]
    change_gradients(replicated, dp.mean)
    dp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 0, "down.bias": 0})
    for layer in (model.up, model.down):
        compute(layer, weight=dp.unshard, bias=dp.unshard)
    return model
