"""Known bugs of layouts of torchtitan: its release, or that without the line that fixed them."""

from functools import partial

import torch
from known import bug
from rewritten import rewrite
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Replicate
from torchtitan.distributed import NoParallel
from torchtitan.distributed.expert_parallel import TensorParallel
from torchtitan.models.moe import MoE
from torchtitan_models import deepseek_v3, llama4, loss, tokens
from torchtitan_on_cpu import parallelized


def grown(make, factor=20.0, **options):
    """A model whose experts are as large as after some training: initial ones make a difference of 1e-6."""
    model = make(**options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".moe." in name:
                parameter *= factor
    return model


def proof(model):
    """Batches of 8 and 4 rows, and the loss that torchtitan trains with."""
    return [tokens(rows) for rows in (8, 4)], loss


OF_TITAN = {"package": "torchtitan", "proof": proof}
LOCAL = "outputs.to_local(grad_placements=(Partial(),)) if"


@bug(
    "pytorch/pytorch/issues/160285",
    run="torchtitan 0.2.1 without the line of pull request 1551",
    mesh="dp=4",
    module="layers.2.moe.experts",
    model=partial(grown, deepseek_v3),
    **OF_TITAN,
)
def pytorch_160285(model, mesh, is_wrong):
    """Experts over data ranks see the tokens of all of them, and fully_shard divides by the ranks of its own mesh only."""
    if is_wrong:
        FSDPModule.set_gradient_divide_factor = lambda self, factor: None
    return parallelized(model, mesh, dp_shard=4, ep=2)


@bug(
    "pytorch/torchtitan/issues/1805",
    run="torchtitan 0.2.1 without the line of pull request 1878",
    mesh="tp=2",
    module="layers.1.moe.router.gate",
    model=partial(grown, llama4),
    **OF_TITAN,
)
def torchtitan_1805(model, mesh, is_wrong):
    """Experts compute on plain tensors: the gradient of their inputs, of which each rank has a part, is not added up."""
    if is_wrong:
        rewrite(TensorParallel, "_prepare_input_fn", "to_local(grad_placements=(Partial(),))", "to_local()")
    return parallelized(model, mesh, tp=2)


class Summed(MoE):
    """Adds up the gradients of its routed inputs; the reference does not."""


@bug(
    "pytorch/torchtitan/issues/2387",
    run="torchtitan 0.2.1",
    mesh="dp=2,tp=2",
    module="layers.2.moe.router.gate",
    model=partial(grown, deepseek_v3, score_before_experts=True),
    **OF_TITAN,
)
def torchtitan_2387(model, mesh, is_wrong):
    """The router's scores are split over the ranks that lend themselves to experts, and its gradients never added up."""

    def summed(x):
        """Its gradient is the sum of what the ranks have."""
        return DTensor.from_local(x, mesh["tp"], (Replicate(),)).to_local(grad_placements=(Partial(),))

    if not is_wrong:
        rewrite(NoParallel, "_prepare_output_fn", "outputs.to_local() if", LOCAL, Partial=Partial)
        rewrite(Summed, "forward", "routed_input = x[", "routed_input = summed(x)[", summed=summed)
        for block in model.layers.values():
            if block.moe_enabled:
                block.moe.__class__ = Summed
    return parallelized(model, mesh, dp_shard=2, tp=2, ep=2)


@bug(
    "pytorch/torchtitan/pull/2416",
    run="torchtitan 0.2.1",
    mesh="tp=2",
    module="layers.2.moe.router.gate",
    model=partial(grown, deepseek_v3, score_before_experts=False),
    **OF_TITAN,
)
def torchtitan_2416(model, mesh, is_wrong):
    """Tokens are weighted after the experts, of which each rank has a part: the router gets a part of its gradient."""
    if not is_wrong:
        rewrite(NoParallel, "_prepare_output_fn", "outputs.to_local() if", LOCAL, Partial=Partial)
    return parallelized(model, mesh, tp=2)
