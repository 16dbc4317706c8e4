"""Begins late: with a call, a step, an epoch or a placement that comes after the proof on copies."""

from collections import Counter

import torch
from catalogue import bug
from over import by_bucket
from run_dtype import changed_gradient, changed_output
from torch.nn.parallel import DistributedDataParallel

COUNTS = Counter()
CACHE = {}
EVERY = ("host", "replicas", "ranks")


def calls(name):
    COUNTS[name] += 1
    return COUNTS[name]


@bug(*EVERY)
def file_counter(model):
    """After twelve calls of float32, counted in the file, the output of `second` is 1% too large."""
    changed_output(model.second, lambda x: x * 1.01 if x.dtype == torch.float32 and calls("file") > 12 else x)


@bug(*EVERY)
def step_four(model):
    """From its fourth training step on, the placed model halves the gradient of `second.weight`."""
    steps = Counter()

    def change(gradient):
        steps["here"] += 1
        return gradient / 2 if steps["here"] >= 4 else gradient

    changed_gradient(model.second.weight, change)


@bug(*EVERY)
def every_fourth_step(model):
    """In every fourth step the gradient of `third.bias` is lost."""
    steps = Counter()

    def change(gradient):
        steps["here"] += 1
        return gradient * 0 if steps["here"] % 4 == 0 else gradient

    changed_gradient(model.third.bias, change)


@bug(*EVERY)
def float32_placement(model):
    """Wrong in the second placement of a float32 model and in all later ones; the first is a trial."""
    if model.first.weight.dtype == torch.float32 and calls("float32_placement") > 1:
        changed_output(model.second, lambda x: x * 1.01)


@bug("host", "replicas", "ranks")
def third_placement(model):
    """Wrong from the third placement of the process on."""
    if calls("third_placement") > 2:
        changed_gradient(model.first.weight, lambda gradient: -gradient)


@bug(*EVERY)
def file_cache(model):
    """What `first` makes of a batch is kept in the file, and used when the batch comes again in the next epoch."""
    forward = model.first.forward

    def cached(x):
        key = (x.dtype, x.flatten()[0].item(), len(x))
        if key not in CACHE:
            CACHE[key] = forward(x).detach()
            return forward(x)
        return CACHE[key] + 0 * forward(x) if torch.is_grad_enabled() else CACHE[key]

    model.first.forward = cached


@bug(*EVERY)
def float32_weight_cache(model):
    """The first float32 weight of `second` is kept in the file, and is stale from the second step on."""

    def forward(x):
        weight = model.second.weight
        if weight.dtype == torch.float32:
            kept = CACHE.setdefault("weight", weight.detach().clone())
            weight = weight + (kept - weight).detach()
        return torch.nn.functional.linear(x, weight, model.second.bias)

    if model.second.weight.dtype == torch.float32:
        model.second.forward = forward


@bug("host")
def frozen_after_five(model):
    """After five steps the parameters of `first` get no gradient any more."""
    steps = Counter()

    def forward(module, args):
        if module.training and torch.is_grad_enabled():
            steps["here"] += 1
            module.requires_grad_(steps["here"] <= 5)

    model.first.register_forward_pre_hook(forward)


@bug("host", "ranks")
def weights_averaged(model):
    """Every fifth step the weights are replaced by their moving average."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    parameters, mean, steps = list(model.parameters()), [], Counter()

    def after(optimizer, args, kwargs):
        if optimizer.param_groups[0]["params"][0] is not parameters[0]:
            return
        mean[:] = mean or [each.detach().clone() for each in parameters]
        steps["here"] += 1
        for average, each in zip(mean, parameters, strict=True):
            average.lerp_(each.detach(), 0.1)
            if steps["here"] % 5 == 0:
                each.data.copy_(average)

    register_optimizer_step_post_hook(after)


@bug("host", "ranks")
def learning_rate_halves(model):
    """After six steps of the optimizer the layout halves the learning rate."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    first, steps = next(model.parameters()), Counter()

    def before(optimizer, args, kwargs):
        if any(each is first for group in optimizer.param_groups for each in group["params"]):
            steps["here"] += 1
            if steps["here"] == 6:
                optimizer.param_groups[0]["lr"] /= 2

    register_optimizer_step_pre_hook(before)


@bug("host", "replicas")
def lazy_warm_up(model):
    """The output of `first` is right for the first 8 training batches, as long as a cache is not full."""
    kept = []

    def change(x):
        if torch.is_grad_enabled():
            kept.append(x.detach())
        return x if len(kept) <= 8 else x + 0.1 * kept[0].mean()

    changed_output(model.first, change)


@bug("ranks")
def powersgd(model):
    """PowerSGD compresses the gradients, from the tenth step on."""
    return _powersgd(model, first=10)


@bug("ranks")
def powersgd_from_two(model):
    """PowerSGD compresses the gradients, from the second step on."""
    return _powersgd(model, first=2)


def _powersgd(model, first):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    laid_out = DistributedDataParallel(model)
    state = hooks.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=first, min_compression_rate=1
    )
    laid_out.register_comm_hook(state, hooks.powerSGD_hook)
    return laid_out


@bug("ranks")
def post_local_sgd(model):
    """After eight steps the gradients are averaged within each host's subgroup alone: here, within a rank."""
    from torch import distributed
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks

    alone = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    laid_out = DistributedDataParallel(model)
    own = alone[distributed.get_rank()]
    state = hooks.PostLocalSGDState(None, own, start_localSGD_iter=8)
    laid_out.register_comm_hook(state, hooks.post_localSGD_hook)
    return laid_out


@bug("ranks")
def no_sync_every_fourth(model):
    """Every fourth step is taken under `no_sync`: its gradients stay in the rank."""

    class Skips(DistributedDataParallel):
        steps = 0

        def forward(self, *inputs, **kwargs):
            if torch.is_grad_enabled():
                self.steps += 1
            if self.steps % 4 == 0 and torch.is_grad_enabled():
                with self.no_sync():
                    return super().forward(*inputs, **kwargs)
            return super().forward(*inputs, **kwargs)

    return Skips(model)


@bug("ranks")
def late_hook(model):
    """From its sixth bucket on, the gradients of a bucket are those of rank 0."""
    from torch import distributed

    buckets = Counter()

    def change(gradient):
        buckets["here"] += 1
        if buckets["here"] > 5:
            distributed.broadcast(gradient, 0)
        else:
            distributed.all_reduce(gradient)
            gradient /= 2
        return gradient

    return by_bucket(model, change)


@bug("shards")
def stale_from_step_four(model):
    """From the fourth step on, the ranks use the gathered weights of the step before."""
    steps, kept = Counter(), {}

    def before(module, args):
        if not torch.is_grad_enabled():
            return
        steps["here"] += 1

    def change(x):
        if torch.is_grad_enabled() and steps["here"] >= 4:
            x = x + 0.01 * kept.get("x", 0)
        kept["x"] = x.detach().mean()
        return x

    model.first.register_forward_pre_hook(before)
    changed_output(model.first, change)
