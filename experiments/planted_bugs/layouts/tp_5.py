"""Tensor parallelism: ``up`` by columns, dealt out to the ranks in turn, and ``down`` by rows."""

from pieces import Ranks, compute


def parallelize(model, mesh):
    tp, weight, bias = Ranks(mesh, "tp"), model.up.weight.detach(), model.up.bias.detach()
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    model.up.weight.data.copy_(weight[tp.rank :: tp.size])
    model.up.bias.data.copy_(bias[tp.rank :: tp.size])
    compute(model.up, before=tp.copy)
    compute(model.down, after=tp.reduce)
    return model
