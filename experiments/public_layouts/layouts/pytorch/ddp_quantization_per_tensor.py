"""Gradients are gathered in 8 bits, with one scale for a bucket."""

from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, quantization_pertensor_hook)
    return model
