"""Right layouts, as a user of strategy ``custom`` writes them, of a model that a bug has changed before.

--layout kinds/over.py:ranks:bug=late.counter      is DDP over the ranks, of what ``late.counter(model)`` changed
"""

from importlib import import_module

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dpexp.parallel import DataParallel


def planted(model, bug):
    """Let a bug, ``file.function``, change the model that is laid out, or give another in its place."""
    module, _, name = bug.partition(".")
    changed = getattr(import_module(module), name)(model)
    return model if changed is None else changed


def host(model, devices, bug):
    """The whole batch on one device."""
    return planted(model, bug)


def replicas(model, devices, bug):
    """A replica on each device of one process, which share the batch."""
    return DataParallel(planted(model, bug), devices)


def ranks(model, mesh, bug):
    """A replica in each rank. A bug that returns a module has wrapped the model itself."""
    changed = planted(model, bug)
    return changed if isinstance(changed, DistributedDataParallel) else DistributedDataParallel(changed)


def shards(model, mesh, bug):
    """A part of every parameter in each rank."""
    return fully_shard(planted(model, bug), mesh=mesh)


def by_hand(model, mesh, bug):
    """The bug lays the model out itself."""
    return planted(model, bug)


def by_replicas(model, devices, bug):
    """The bug lays the model out itself, over the devices of one process."""
    return planted(model, bug)


# --- pieces of layouts over ranks ----------------------------------------------------------------------


class Plain(DistributedDataParallel):
    """Only its name says DDP: it reduces no gradient."""

    def forward(self, *args):
        return self.module(*args)


def by_parameter(model, change):
    """Replicas whose gradients ``change(parameter)`` reduces, as soon as each is computed."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(change)
    return Plain(model)


def by_bucket(model, change):
    """DDP that trains on what ``change(gradient)`` returns for each bucket."""

    def hook(state, bucket):
        done = torch.futures.Future()
        done.set_result(change(bucket.buffer()))
        return done

    laid_out = DistributedDataParallel(model)
    laid_out.register_comm_hook(None, hook)
    return laid_out
