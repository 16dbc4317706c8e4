"""Hybrid: a rank looks up its ids in its rows of the table."""

from pieces import Ranks, change_gradients


def parallelize(model, mesh):
    dp, table = Ranks(mesh, "dp"), model.table
    change_gradients([*model.body.parameters(), *model.head.parameters()], dp.mean)
    dp.shard(model, {"table.weight": 0})

    def forward(ids):
        own = ids - dp.rank * len(table.weight)
        is_here = (own >= 0) & (own < len(table.weight))
        return table.weight[own.where(is_here, 0)] * is_here[:, None]

    table.forward = forward
    return model
