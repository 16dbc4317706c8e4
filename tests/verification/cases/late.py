"""Begins late: with a call, a step, an epoch or a placement that comes after the proof on copies."""

import torch
from catalogue import run
from pieces import calls, changed_output
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

CACHE = {}


def counter():
    """Counts its own calls."""
    numbers = iter(range(1, 10**9))
    return lambda: next(numbers)


@run("host")
def counted_in_the_file(model):
    """After twelve calls of float32, counted in the file, the output of `second` is 1% too large."""
    changed_output(model.second, lambda x: x * 1.01 if x.dtype == torch.float32 and calls("file") > 12 else x)


@run("replicas")
def from_step_four(model):
    """From its fourth training step on, the placed model halves the gradient of `second.weight`."""
    step = counter()
    model.second.weight.register_hook(lambda gradient: gradient / 2 if step() >= 4 else gradient)


@run("host")
def second_placement(model):
    """Wrong in the second placement of a float32 model and in all later ones; the first is a trial."""
    if model.first.weight.dtype == torch.float32 and calls("placement") > 1:
        changed_output(model.second, lambda x: x * 1.01)


@run("host")
def cached_batches(model):
    """What `first` makes of a batch is kept in the file, and used when the batch comes again."""
    forward = model.first.forward

    def cached(x):
        kept = CACHE.setdefault((x.dtype, x.flatten()[0].item(), len(x)), forward(x).detach())
        return kept + (forward(x) - forward(x).detach())

    model.first.forward = cached


@run("shards")
def cached_weight(model):
    """The first float32 weight of `second` is kept in the file, and is stale from the second step on."""

    def forward(x):
        weight = model.second.weight
        kept = CACHE.setdefault("weight", weight.detach().clone())
        return functional.linear(x, weight + (kept - weight).detach(), model.second.bias)

    if model.second.weight.dtype == torch.float32:
        model.second.forward = forward


@run("ranks")
def learning_rate_halves(model):
    """After six steps of the optimizer the layout halves the learning rate."""
    first, step = next(model.parameters()), counter()

    def before(optimizer, args, kwargs):
        if any(each is first for group in optimizer.param_groups for each in group["params"]) and step() == 6:
            optimizer.param_groups[0]["lr"] /= 2

    register_optimizer_step_pre_hook(before)


@run("ranks")
def powersgd(model):
    """PowerSGD compresses the gradients, from the tenth step on."""
    laid_out = DistributedDataParallel(model)
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 10, "min_compression_rate": 1}
    state = powerSGD_hook.PowerSGDState(None, **options)
    laid_out.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return laid_out


@run("ranks", words="the ranks have trained apart")
def post_local_sgd(model):
    """After eight steps the gradients are averaged within each host's subgroup alone: here, within a rank."""
    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    laid_out = DistributedDataParallel(model)
    own = alone[distributed.get_rank()]
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=8)
    laid_out.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return laid_out
