"""Tokens are weighted after the experts, of which each rank has a part: the router gets a part of its gradient."""

from grown import grown
from models import deepseek_v3
from parallelized import parallelized
from rewritten import rewrite
from torch.distributed.tensor import Partial
from torchtitan.distributed import NoParallel

LINK = "https://github.com/pytorch/torchtitan/pull/2416"
RELEASE = "torchtitan 0.2.1"
PACKAGE = "torchtitan"
MESH = "tp=2"
MODULE = "layers.2.moe.router.gate"


def model():
    return grown(deepseek_v3(score_before_experts=False))


def wrong(model, mesh):
    return parallelized(model, mesh, tp=2)


def mended(model, mesh):
    local = "outputs.to_local(grad_placements=(Partial(),)) if"
    rewrite(NoParallel, "_prepare_output_fn", "outputs.to_local() if", local, Partial=Partial)
    return wrong(model, mesh)
