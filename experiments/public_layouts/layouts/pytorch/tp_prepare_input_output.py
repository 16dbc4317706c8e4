"""PrepareModuleInputOutput: tokens are gathered before a module, and its partial sums added up and split after it."""

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
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
        "ffn": PrepareModuleInputOutput(
            input_layouts=(Shard(1),),
            desired_input_layouts=(Replicate(),),
            output_layouts=(Partial(),),
            desired_output_layouts=(Shard(1),),
        ),
        "ffn.0": ColwiseParallel(),
        "ffn.2": RowwiseParallel(output_layouts=Partial()),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, plan)
