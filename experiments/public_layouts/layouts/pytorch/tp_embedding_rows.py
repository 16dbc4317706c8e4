"""An embedding whose rows are split."""

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

MESH = "tp=2"
MODELS = ("text",)


def parallelize(model, mesh):
    return parallelize_module(model, mesh, {"table": RowwiseParallel(input_layouts=Replicate())})
