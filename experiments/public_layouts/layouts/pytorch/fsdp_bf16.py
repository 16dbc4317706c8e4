"""Parameters are gathered in bfloat16, and gradients reduced in float32."""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_shard(model, mesh=mesh, mp_policy=policy)
