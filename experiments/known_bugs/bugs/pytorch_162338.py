"""gloo takes the average that fully_shard asks for as a sum."""

from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

LINK = "https://github.com/pytorch/pytorch/issues/162338"
RELEASE = "PyTorch 2.13.0 with the sum that gloo computed"
PACKAGE = "pytorch"
MESH = "dp=2"
MODULE = "2"


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))


def wrong(model, mesh):
    sums = (None, None, ReduceOp.SUM, ReduceOp.SUM)
    _fsdp_collectives._get_gradient_divide_factors = lambda *arguments, **options: sums
    return fully_shard(model, mesh=mesh)


def mended(model, mesh):
    return fully_shard(model, mesh=mesh)
