"""Layouts that are right, each with something that verification could stumble over."""

from warnings import catch_warnings

import torch
from catalogue import right
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training_mode import Synchronized, with_norm


@right("host", model="nets:NormsAndDrops")
def new_modules(model):
    """A new dropout, and a new batch norm with the state of the old one, are in their places."""
    model.drop = nn.Dropout(0.4)
    with_norm(model, nn.BatchNorm1d(8))


@right("ranks", model="nets:Norms", words="batch norms use the statistics of all rows")
def synchronized_norm(model):
    """One's own synchronized batch norm."""
    with_norm(model, Synchronized(8))


@right("ranks", model="nets:NormsAndDrops")
def ddp_with_options(model):
    """DDP with a static graph, views of its buckets, and the hook that does what it does without one."""
    laid_out = DistributedDataParallel(model.train(), static_graph=True, gradient_as_bucket_view=True)
    laid_out.register_comm_hook(None, allreduce_hook)
    return laid_out


@right("ranks")
def composable(model):
    """Composable `replicate`."""
    return replicate(model)


@right("ranks", accumulate=2, clip_norm=0.01, optimizer="adam")
def accumulates_and_clips(model):
    """The run accumulates two batches, and clips."""


@right("ranks", dtype="bfloat16")
def in_bfloat16(model):
    """The run computes in bfloat16."""


@right("replicas", autocast="bfloat16")
def under_autocast(model):
    """The run computes under autocast."""


@right("ranks", eval=True, model="nets:NormsAndDrops")
def in_eval_mode(model):
    """The run does not train."""


@right("replicas", virtual=3, dtype="float64", model="nets:NormsAndDrops")
def three_replicas(model):
    """Three replicas, of which a batch of four rows uses two, in float64."""


@right("alike", model="nets:Drops", words="random layers")
def dropout_of_shards(model):
    """Each rank drops of its shard of the features: which ones a single device does not know."""
    plan = {"second": ColwiseParallel(), "third": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


@right("alike")
def buffers_of_shards(model):
    """Ranks that share rows have buffers of the same name with other numbers, as the first id of a shard."""
    model.register_buffer("first_id", torch.tensor(10.0 * distributed.get_rank()))


@right("ranks", data="random:samples=31", model="nets:Drops")
def single_rows(model):
    """The last batch has one row, and a rank has none."""


@right("ranks", model="nets:Norms")
def own_buffers(model):
    """Each rank keeps the buffers of its rows: nobody sends those of rank 0."""
    return DistributedDataParallel(model, broadcast_buffers=False)


def zero_redundancy(parameters, lr):
    with catch_warnings(action="ignore"):  # of torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)


@right("ranks", optimizer="right_layouts:zero_redundancy")
def shards_of_an_optimizer(model):
    """Each rank has a part of the optimizer's state."""


@right("ranks")
def mixed_precision(model):
    """FSDP2 computes in bfloat16, and reduces in float32."""
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


@right("ranks")
def warmed(model):
    """Its forward is tried before there is an optimizer, so that the root's parameters stay gathered."""
    fully_shard(model)(torch.randn(4, 6, dtype=model.first.weight.dtype))
    return model
