"""ZeroRedundancyOptimizer: parameters are views of the buckets that it sends."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)
OPTIONS = {"optimizer": "zero_bucket_view.py:sgd"}


def parallelize(model, mesh):
    for parameter in model.parameters():
        parameter.is_laid_out = True
    return DistributedDataParallel(model)


def sgd(parameters, lr):
    """Of a single device, to compare with, it is SGD itself."""
    parameters = list(parameters)
    if not any(hasattr(parameter, "is_laid_out") for parameter in parameters):
        return torch.optim.SGD(parameters, lr=lr)
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, parameters_as_bucket_view=True, lr=lr)
