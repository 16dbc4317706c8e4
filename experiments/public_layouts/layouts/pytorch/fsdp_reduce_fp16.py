"""Gradients are reduced in float16."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    return fully_shard(model, mesh=mesh, mp_policy=policy)
