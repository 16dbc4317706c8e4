"""Layouts that are right, each with something that verification could stumble over."""

import copy
import functools
import random

import torch
from catalogue import right
from over import by_parameter
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

EVERY = ("host", "replicas", "ranks")


def nothing(model):
    """The layout, and nothing else."""


@right(*EVERY, model="NormsAndDrops")
def in_training_mode(model):
    """The layout puts the model into training mode."""
    model.train()


@right("ranks", model="NormsAndDrops")
def ddp_in_training_mode(model):
    """`DDP(model.train())`."""
    return DistributedDataParallel(model.train())


@right(*EVERY, model="NormsAndDrops")
def through_eval_mode(model):
    """The layout puts the model into eval mode, and back."""
    model.eval()
    model.train()


@right(*EVERY, model="Drops")
def new_dropout(model):
    """A new dropout of the same probability is in the place of the old one."""
    model.drop = nn.Dropout(0.4)


@right(*EVERY, model="Norms")
def new_norm(model):
    """A new batch norm with the state of the old one is in its place."""
    norm = nn.BatchNorm1d(8).to(model.first.weight.dtype)
    norm.load_state_dict(model.norm.state_dict())
    model.norm = norm


class Synchronized(nn.BatchNorm1d):
    """A batch norm of the rows of all ranks."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        rows = all_reduce(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = all_reduce(x.sum(0)) / rows
        variance = all_reduce((x - mean).square().sum(0)) / rows
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * rows / (rows - 1), self.momentum)
            self.num_batches_tracked += 1
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


@right("ranks", model="Norms")
def own_synchronized_norm(model):
    """One's own synchronized batch norm."""
    norm = Synchronized(8).to(model.first.weight.dtype)
    norm.load_state_dict(model.norm.state_dict())
    model.norm = norm


@right(*EVERY, model="NormsAndDrops")
def deep_copy(model):
    """A copy of the model is laid out."""
    return copy.deepcopy(model)


@right(*EVERY)
def own_linear(model):
    """A layer of one's own computes what `nn.Linear` computes."""

    class Own(nn.Linear):
        def forward(self, x):
            return (x[..., None, :] * self.weight).sum(-1) + self.bias

    own = Own(8, 8).to(model.second.weight.dtype)
    own.load_state_dict(model.second.state_dict())
    model.second = own


@right(*EVERY)
def counts_calls(model):
    """`F.linear` is wrapped by a function that counts its calls."""
    counted, original = [], functional.linear

    @functools.wraps(original)
    def linear(*args, **kwargs):
        counted.append(1)
        return original(*args, **kwargs)

    functional.linear = linear


@right(*EVERY)
def hooks_that_look(model):
    """Hooks look at outputs and gradients, and change nothing."""
    seen = []
    model.second.register_forward_hook(lambda module, args, x: seen.append(float(x.detach().norm())))
    model.second.weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))


@right(*EVERY, model="Drops")
def seeds(model):
    """The layout seeds PyTorch and Python."""
    torch.manual_seed(3)
    random.seed(3)


@right("ranks")
def own_all_reduce(model):
    """Gradients are all-reduced by a hook for each parameter, which waits."""

    def change(parameter):
        parameter.grad /= distributed.get_world_size()
        distributed.all_reduce(parameter.grad, async_op=True).wait()

    return by_parameter(model, change)


@right("ranks")
def default_hook(model):
    """A communication hook that does what DDP does without one."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    laid_out = DistributedDataParallel(model)
    laid_out.register_comm_hook(None, allreduce_hook)
    return laid_out


@right("ranks")
def static_graph(model):
    """DDP with a static graph and views of its buckets."""
    return DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)


@right("ranks", model="NormsAndDrops")
def unused_parameters(model):
    """DDP searches for parameters that are not used."""
    return DistributedDataParallel(model, find_unused_parameters=True)


@right("by_hand")
def replicate(model):
    """Composable `replicate`."""
    from torch.distributed._composable.replicate import replicate

    return replicate(model)


@right("shards")
def nested_shards(model):
    """`fully_shard` of two layers and of the model around them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)


@right(*EVERY)
def checkpointed(model):
    """A layer is computed again in the backward."""
    from torch.utils.checkpoint import checkpoint

    forward = model.second.forward
    model.second.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


@right("host", model="Norms")
def one_chunk(model):
    """The model is wrapped in a module that passes the whole batch."""
    model.register_forward_pre_hook(lambda module, args: (args[0].clone(),))


@right(*EVERY, accumulate=2, clip_norm=0.01, optimizer="adam")
def accumulates_and_clips(model):
    """The run accumulates two batches, and clips."""


@right(*EVERY, dtype="bfloat16")
def in_bfloat16(model):
    """The run computes in bfloat16."""


@right(*EVERY, autocast="bfloat16")
def under_autocast(model):
    """The run computes under autocast."""


@right(*EVERY, eval=True, model="NormsAndDrops")
def in_eval_mode(model):
    """The run does not train."""


@right(*EVERY, dtype="float64", model="NormsAndDrops")
def in_float64(model):
    """The run computes in float64."""


@right("replicas", virtual=3, model="NormsAndDrops")
def three_replicas(model):
    """Three replicas, of which a batch of four rows uses two."""


@right("ranks", data="random:samples=31", model="Drops")
def single_rows(model):
    """The last batch has one row, and a rank has none."""
