"""Routing weights are gathered by a collective without a backward: the router gets no gradient."""

import gathered
import torch
from torch import distributed

LINK = "https://github.com/NVIDIA-NeMo/Automodel/pull/2995"
RELEASE = "PyTorch 2.13.0: the call that the pull request mended"
PACKAGE = "pytorch"
MESH = "dp=2"
MODULE = "router"

model = gathered.model


def weights(x):
    pieces = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(pieces, x.detach())
    return torch.cat(pieces)


def wrong(model, mesh):
    return gathered.laid_out(model, gathered.all_gather, weights)


def mended(model, mesh):
    return gathered.laid_out(model, gathered.all_gather, gathered.all_gather)
