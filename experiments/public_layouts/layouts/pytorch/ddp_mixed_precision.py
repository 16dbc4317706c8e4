"""DistributedDataParallel's own mixed precision: bfloat16 in forward, backward and reduction."""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    low = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return DistributedDataParallel(model, mixed_precision=low)
