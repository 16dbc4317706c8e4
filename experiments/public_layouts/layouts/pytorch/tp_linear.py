"""ColwiseParallel and RowwiseParallel, one after the other."""

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MESH = "tp=2"
MODELS = ("net", "text")


def parallelize(model, mesh):
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
