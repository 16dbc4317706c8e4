"""ZeroRedundancyOptimizer: each rank updates some parameters, and keeps their state alone."""

import torch
from replicas import replicated, zero

MESH = "dp=2"
MODELS = ("net",)
OPTIONS = {"optimizer": "zero_adam.py:adam"}


def parallelize(model, mesh):
    return replicated(model)


def adam(parameters, lr):
    return zero(parameters, torch.optim.Adam, lr)
