"""Experts compute on plain tensors: the gradient of their inputs, of which each rank has a part, is not added up."""

from grown import grown
from models import llama4
from parallelized import parallelized
from rewritten import rewrite
from torchtitan.distributed.expert_parallel import TensorParallel

LINK = "https://github.com/pytorch/torchtitan/issues/1805"
RELEASE = "torchtitan 0.2.1 without the line of pull request 1878"
PACKAGE = "torchtitan"
MESH = "tp=2"
MODULE = "layers.1.moe.router.gate"


def model():
    return grown(llama4())


def wrong(model, mesh):
    rewrite(TensorParallel, "_prepare_input_fn", "to_local(grad_placements=(Partial(),))", "to_local()")
    return mended(model, mesh)


def mended(model, mesh):
    return parallelized(model, mesh, tp=2)
