"""Hybrids: a table that is sharded by rows beside data parallelism, and meshes of two dimensions."""

from catalogue import right, wrong
from pieces import change_gradients, function
from tensor_parallel import pair
from torch.distributed.fsdp import fully_shard


@right("dp", model="nets:Lookup")
def right_table(model, dp):
    """A rank has some rows of the table for the ids of all ranks; the rest is data-parallel."""
    change_gradients([*model.body.parameters(), *model.head.parameters()], dp.mean)
    dp.shard(model, {"table.weight": 0})
    table = model.table

    def forward(ids):
        counts, own = dp.counts(len(ids)), dp.all_rows(ids) - dp.rank * len(table.weight)
        is_here = (own >= 0) & (own < len(table.weight))
        vectors = table.weight[own.where(is_here, 0)] * is_here[:, None] / dp.size
        return function(vectors, lambda x: dp.own_rows(dp.sum(x), counts) * dp.size, dp.all_rows)

    table.forward = forward


@wrong("dp", model="nets:Lookup", module="table")
def no_exchange(model, dp):
    """Ids that belong to another rank's rows are zero: the exchange of the lookups is left out."""
    right_table.change(model, dp)
    table = model.table

    def forward(ids):
        own = ids - dp.rank * len(table.weight)
        is_here = (own >= 0) & (own < len(table.weight))
        return table.weight[own.where(is_here, 0)] * is_here[:, None]

    table.forward = forward


@right("tp", model="nets:Experts")
def right_experts(model, tp, summed=("router", "expert")):
    """Each rank computes the rows of some tokens, and has their part of the gradients."""
    model.order.rank, model.order.size = tp.rank, tp.size
    model.together.forward = tp.reduce
    for name in summed:
        change_gradients(model.get_submodule(name).parameters(), tp.sum)


@wrong("tp", model="nets:Experts", module="router", words="the sum over the ranks that share rows is missing")
def router_apart(model, tp):
    """As torchtitan had it: the gradient of the router is that of a rank's tokens."""
    right_experts.change(model, tp, summed=("expert",))


@right("dp,tp")
def right_2d(model, dp, tp):
    """Tensor parallelism along ``tp``, data parallelism along ``dp``."""
    pair(model, tp)
    change_gradients(model.parameters(), dp.mean)


@wrong("dp,tp", module="down")
def mean_of_all_ranks(model, dp, tp):
    """Shards of different columns are averaged with each other."""
    pair(model, tp)
    change_gradients(model.parameters(), lambda gradient: dp.mean(tp.mean(gradient)))


@right("dp_replicate,dp_shard")
def right_hsdp(model, replicate, shard):
    """FSDP2: parameters are sharded along one dimension and replicated along the other."""
    fully_shard(model, mesh=shard.all)


@wrong("dp_replicate,dp_shard", module="head")
def not_along_the_other(model, replicate, shard):
    """FSDP2: the gradients are not averaged along the other dimension."""
    fully_shard(model, mesh=shard.mesh)
