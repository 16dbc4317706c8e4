"""Layouts that are right, each with something that verification could stumble over."""

import functools

import torch
from catalogue import run
from pieces import change_gradients
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training_mode import Synchronized, with_norm


@run("host", model="nets.NormsAndDrops")
def new_modules(model):
    """A new dropout, and a new batch norm with the state of the old one, are in their places."""
    model.drop = nn.Dropout(0.4)
    with_norm(model, nn.BatchNorm1d(8))


@run("ranks", model="nets.Norms", words="batch norms use the statistics of all rows")
def synchronized_norm(model):
    """One's own synchronized batch norm."""
    with_norm(model, Synchronized(8))


@run("ranks")
def looks(model):
    """`F.linear` is wrapped by a function that counts its calls; hooks look at outputs and gradients."""
    seen, original = [], functional.linear

    @functools.wraps(original)
    def linear(*args, **kwargs):
        seen.append(1)
        return original(*args, **kwargs)

    functional.linear = linear
    model.second.register_forward_hook(lambda module, args, x: seen.append(float(x.detach().norm())))
    model.second.weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))


@run("ranks")
def own_all_reduce(model):
    """Gradients are all-reduced by a hook for each parameter, which waits."""

    def mean(gradient):
        gradient /= distributed.get_world_size()
        distributed.all_reduce(gradient, async_op=True).wait()
        return gradient

    change_gradients(model.parameters(), mean)
    return model


@run("ranks", model="nets.NormsAndDrops")
def ddp_with_options(model):
    """DDP with a static graph, views of its buckets, and the hook that does what it does without one."""
    laid_out = DistributedDataParallel(model.train(), static_graph=True, gradient_as_bucket_view=True)
    laid_out.register_comm_hook(None, allreduce_hook)
    return laid_out


@run("ranks")
def composable(model):
    """Composable `replicate`."""
    return replicate(model)


@run("shards")
def nested_shards(model):
    """`fully_shard` of two layers and of the model around them."""
    for each in (model.first, model.second):
        fully_shard(each)


@run("ranks", accumulate=2, clip_norm=0.01, optimizer="adam")
def accumulates_and_clips(model):
    """The run accumulates two batches, and clips."""


@run("ranks", dtype="bfloat16")
def in_bfloat16(model):
    """The run computes in bfloat16."""


@run("replicas", autocast="bfloat16")
def under_autocast(model):
    """The run computes under autocast."""


@run("ranks", eval=True, model="nets.NormsAndDrops")
def in_eval_mode(model):
    """The run does not train."""


@run("replicas", virtual=3, dtype="float64", model="nets.NormsAndDrops")
def three_replicas(model):
    """Three replicas, of which a batch of four rows uses two, in float64."""


@run("alike", model="nets.Drops", words="random layers")
def dropout_of_shards(model):
    """Each rank drops of its shard of the features: which ones a single device does not know."""
    plan = {"second": ColwiseParallel(), "third": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


@run("alike")
def buffers_of_shards(model):
    """Ranks that share rows have buffers of the same name with other numbers, as the first id of a shard."""
    model.register_buffer("first_id", torch.tensor(10.0 * distributed.get_rank()))


@run("ranks", data="random:samples=31", model="nets.Drops")
def single_rows(model):
    """The last batch has one row, and a rank has none."""


@run("ranks", model="nets.Norms")
def own_buffers(model):
    """Each rank keeps the buffers of its rows: nobody sends those of rank 0."""
    return DistributedDataParallel(model, broadcast_buffers=False)
