"""Gradients are reduced as products of matrices of rank 1, from the third step on."""

from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    model.register_comm_hook(
        PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook
    )
    return model
