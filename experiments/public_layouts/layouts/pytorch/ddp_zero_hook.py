"""ZeRO's updates while DDP still reduces gradients."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.01)
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    return model
