"""Layouts along ``dp`` that keep a part of each parameter, or of ``up``, and gather it."""

from catalogue import right, wrong
from pieces import change_gradients, compute, function
from torch.distributed.fsdp import fully_shard


@right("dp")
def right_by_hand(model, dp, joined=None):
    """``up`` is gathered for the forward, and each rank gets its part of the mean gradient."""
    change_gradients([each for name, each in model.named_parameters() if "up" not in name], dp.mean)
    dp.shard(model, {"up.weight": 0, "up.bias": 0})
    join = joined or (lambda x: dp.joined(x, dim=0))

    def unshard(x):
        return function(x, join, lambda gradient: dp.part(dp.mean(gradient), dim=0))

    compute(model.up, weight=unshard, bias=unshard)


by_hand = right_by_hand.change


@wrong("dp", module="up")
def stale(model, dp):
    """The gathered weights are kept, and stale after the first update."""
    kept = {}
    by_hand(model, dp, lambda x: kept.setdefault(x.shape, dp.joined(x, dim=0)).clone())


@right("dp")
def right_fsdp(model, dp):
    """FSDP2: `up` and `down` are gathered together, and the rest with the model."""
    fully_shard([model.up, model.down], mesh=dp.mesh)
    fully_shard(model, mesh=dp.mesh)


@wrong("dp", module="norm", words="the sum over ranks is missing")
def ignored(model, dp):
    """FSDP2: ignored parameters are not sharded, and nobody averages their gradients."""
    fully_shard(model, mesh=dp.mesh, ignored_params=set(model.norm.parameters()))


@wrong("dp", module="down", words="a sum over {n} ranks instead of the mean")
def divided_by_one(model, dp):
    """FSDP2: the factor divides the sum over ranks, and 1 leaves the sum."""
    fully_shard(model.down, mesh=dp.mesh).set_gradient_divide_factor(1.0)
    fully_shard(model, mesh=dp.mesh)


@wrong("dp", module="up", words="no gradient")
def never_reduced(model, dp):
    """FSDP2: the gradients of `up` are never reduced, and so never reach its shards."""
    fully_shard(model.up, mesh=dp.mesh).set_requires_gradient_sync(False)
    fully_shard(model, mesh=dp.mesh)
