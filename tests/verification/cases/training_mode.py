"""Wrong only in training mode: the statistics of batch norm, and dropout."""

import torch
from catalogue import run
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


@run("host", model="nets.Norms")
def momentum(model):
    """The batch norm has momentum 0.5, not 0.1."""
    model.norm.momentum = 0.5


def with_norm(model, new):
    """Put a batch norm with the state of the old one in its place."""
    new.load_state_dict(model.norm.state_dict())
    model.norm = new.to(model.first.weight.dtype)


class Synchronized(nn.BatchNorm1d):
    """A batch norm of the rows of all ranks."""

    correction = 1

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        rows = all_reduce(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = all_reduce(x.sum(0)) / rows
        variance = all_reduce((x - mean).square().sum(0)) / rows
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * rows / (rows - self.correction), self.momentum)
            self.num_batches_tracked += 1
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


@run("ranks", model="nets.Norms", words="norm.running_var")
def biased_of_all_rows(model):
    """A synchronized batch norm keeps the biased variance of all rows."""
    with_norm(model, Synchronized(8))
    model.norm.correction = 0


@run("ranks", model="nets.Norms")
def statistics_of_last_rank(model):
    """Before each forward the buffers of the last rank go to all."""

    def before(module, args):
        for buffer in module.buffers():
            distributed.broadcast(buffer, distributed.get_world_size() - 1)

    laid_out = DistributedDataParallel(model, broadcast_buffers=False)
    laid_out.register_forward_pre_hook(before)
    return laid_out


class Own(nn.Dropout):
    """Applies ``self.drop``, which a bug gives it, in training."""

    def __init__(self, drop):
        super().__init__(0.4)
        self.drop = drop

    def forward(self, x):
        return self.drop(x) if self.training else x


@run("replicas", model="nets.Drops")
def dropout_of_columns(model):
    """Whole columns are dropped, and not numbers."""
    model.drop = Own(lambda x: x * functional.dropout(torch.ones_like(x[:1]), 0.4))


@run("ranks", model="nets.Drops")
def equal_masks(model):
    """The masks of all ranks are drawn from one seed in every step: they are the same."""

    def drop(x):
        torch.manual_seed(7)
        return functional.dropout(x, 0.4)

    model.drop = Own(drop)
