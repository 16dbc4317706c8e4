"""ZeroRedundancyOptimizer: each rank updates some parameters, and sends them to the others."""

import torch
from replicas import replicated, zero

MESH = "dp=2"
MODELS = ("net",)
OPTIONS = {"optimizer": "zero.py:sgd"}


def parallelize(model, mesh):
    return replicated(model)


def sgd(parameters, lr):
    return zero(parameters, torch.optim.SGD, lr)
