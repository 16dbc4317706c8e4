"""DistributedDataParallel that takes the graph of the first step for all."""

from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    return DistributedDataParallel(model, static_graph=True)
