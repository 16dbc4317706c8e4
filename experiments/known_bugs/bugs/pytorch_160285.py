"""Experts over data ranks see the tokens of all of them, and fully_shard divides by the ranks of its own mesh only."""

from grown import grown
from models import deepseek_v3
from parallelized import parallelized
from torch.distributed.fsdp import FSDPModule

LINK = "https://github.com/pytorch/pytorch/issues/160285"
RELEASE = "torchtitan 0.2.1 without the line of pull request 1551"
PACKAGE = "torchtitan"
MESH = "dp=4"
MODULE = "layers.2.moe.experts"


def model():
    return grown(deepseek_v3())


def wrong(model, mesh):
    FSDPModule.set_gradient_divide_factor = lambda self, factor: None
    return mended(model, mesh)


def mended(model, mesh):
    return parallelized(model, mesh, dp_shard=4, ep=2)
