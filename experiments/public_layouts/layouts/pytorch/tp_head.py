"""A head whose columns are split, its output gathered."""

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

MESH = "tp=2"
MODELS = ("net", "text")


def parallelize(model, mesh):
    return parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
