"""ZeroRedundancyOptimizer: each rank updates some parameters, and keeps their state alone."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)
OPTIONS = {"optimizer": "zero_adam.py:adam"}


def parallelize(model, mesh):
    for parameter in model.parameters():
        parameter.is_laid_out = True
    return DistributedDataParallel(model)


def adam(parameters, lr):
    """Of a single device, to compare with, it is Adam itself."""
    parameters = list(parameters)
    if not any(hasattr(parameter, "is_laid_out") for parameter in parameters):
        return torch.optim.Adam(parameters, lr=lr)
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)
