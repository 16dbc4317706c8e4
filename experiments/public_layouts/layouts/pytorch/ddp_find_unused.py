"""DistributedDataParallel that looks for parameters without a gradient."""

from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    return DistributedDataParallel(model, find_unused_parameters=True)
