"""The router's scores are split over the ranks that lend themselves to experts, and its gradients never added up."""

from grown import grown
from models import deepseek_v3
from parallelized import parallelized
from rewritten import rewrite
from torch.distributed.tensor import DTensor, Partial, Replicate
from torchtitan.distributed import NoParallel
from torchtitan.models.moe import MoE

LINK = "https://github.com/pytorch/torchtitan/issues/2387"
RELEASE = "torchtitan 0.2.1"
PACKAGE = "torchtitan"
MESH = "dp=2,tp=2"
MODULE = "layers.2.moe.router.gate"


class Summed(MoE):
    """Adds up the gradients of its routed inputs; the reference does not."""


def model():
    return grown(deepseek_v3(score_before_experts=True))


def wrong(model, mesh):
    return parallelized(model, mesh, dp_shard=2, tp=2, ep=2)


def mended(model, mesh):
    def summed(x):
        """Its gradient is the sum of what the ranks have."""
        return DTensor.from_local(x, mesh["tp"], (Replicate(),)).to_local(grad_placements=(Partial(),))

    local = "outputs.to_local(grad_placements=(Partial(),)) if"
    rewrite(NoParallel, "_prepare_output_fn", "outputs.to_local() if", local, Partial=Partial)
    rewrite(Summed, "forward", "routed_input = x[", "routed_input = summed(x)[", summed=summed)
    for block in model.layers.values():
        if block.moe_enabled:
            block.moe.__class__ = Summed
    return wrong(model, mesh)
