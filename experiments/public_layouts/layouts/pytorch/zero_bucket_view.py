"""ZeroRedundancyOptimizer: parameters are views of the buckets that it sends."""

import torch
from replicas import replicated, zero

MESH = "dp=2"
MODELS = ("net",)
OPTIONS = {"optimizer": "zero_bucket_view.py:sgd"}


def parallelize(model, mesh):
    return replicated(model)


def sgd(parameters, lr):
    return zero(parameters, torch.optim.SGD, lr, parameters_as_bucket_view=True)
