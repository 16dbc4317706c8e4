"""An embedding whose columns are split."""

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

MESH = "tp=2"
MODELS = ("text",)


def parallelize(model, mesh):
    return parallelize_module(model, mesh, {"table": ColwiseParallel(output_layouts=Replicate())})
