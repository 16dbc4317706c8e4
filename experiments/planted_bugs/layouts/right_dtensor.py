"""Tensor parallelism by ``parallelize_module``: ``up`` by columns, ``down`` by rows."""

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def parallelize(model, mesh):
    return parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
