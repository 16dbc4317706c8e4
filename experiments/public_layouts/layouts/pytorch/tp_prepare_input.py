"""PrepareModuleInput: tokens are split over the ranks up to a module that needs all of them."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

MESH = "tp=2"
MODELS = ("feed",)


def parallelize(model, mesh):
    plan = {
        "table": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "ffn": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "ffn.0": ColwiseParallel(),
        "ffn.2": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, plan)
