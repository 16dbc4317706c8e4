"""loss_parallel takes the gradient of a log_softmax for granted, whatever reads it."""

import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss, parallelize_module

LINK = "https://github.com/pytorch/pytorch/issues/190746"
RELEASE = "PyTorch 2.13.0"
PACKAGE = "pytorch"
MESH = "tp=2"
MODULE = "head"


class Scores(nn.Module):
    """The logarithms of probabilities, which a loss on all of them reads."""

    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x):
        scores = torch.log_softmax(self.head(torch.tanh(self.up(x))), dim=-1)
        return scores.full_tensor() if hasattr(scores, "full_tensor") else scores


def model():
    return Scores()


def wrong(model, mesh):
    loss._enable_custom_loss_ops()
    return mended(model, mesh)


def mended(model, mesh):
    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    return parallelize_module(model, mesh, plan)
