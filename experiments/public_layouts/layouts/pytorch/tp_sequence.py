"""SequenceParallel, PrepareModuleInput and PrepareModuleOutput: a norm whose tokens are split over the ranks."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

MESH = "tp=2"
MODELS = ("text",)


def parallelize(model, mesh):
    rows = {"input_layouts": Replicate(), "output_layouts": Shard(1)}
    plan = {
        "table": RowwiseParallel(**rows, use_local_output=False),
        "norm": SequenceParallel(use_local_output=False),
        "query": ColwiseParallel(input_layouts=Shard(1)),
        "key": ColwiseParallel(input_layouts=Shard(1)),
        "value": ColwiseParallel(input_layouts=Shard(1)),
        "out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "": PrepareModuleOutput(output_layouts=Shard(-1), desired_output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, plan)
