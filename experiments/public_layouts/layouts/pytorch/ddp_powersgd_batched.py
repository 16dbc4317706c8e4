"""All gradients together are reduced as products of matrices of rank 1."""

from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), batched_powerSGD_hook)
    return model
