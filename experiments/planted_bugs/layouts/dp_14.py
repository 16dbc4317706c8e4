"""Data parallelism: each rank draws the weights of ``up`` itself, with a seed."""

import torch
from models import SEED
from pieces import Ranks, change_gradients


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    generator = torch.Generator().manual_seed(SEED + dp.rank)
    model.up.weight.data.copy_(torch.randn(model.up.weight.shape, generator=generator) / 4)
    change_gradients(model.parameters(), dp.mean)
    return model
