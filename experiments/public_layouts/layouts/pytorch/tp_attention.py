"""Heads of attention split by ColwiseParallel, joined by RowwiseParallel."""

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MESH = "tp=2"
MODELS = ("text",)


def parallelize(model, mesh):
    columns = dict.fromkeys(("query", "key", "value"), ColwiseParallel())
    return parallelize_module(model, mesh, {**columns, "out": RowwiseParallel()})
