"""Known bugs of layouts by the plans of Transformers: its release without the line that fixed them."""

from functools import partial

import torch
from known import bug
from rewritten import rewrite
from transformers.distributed.expert_parallel import AllReduceEP
from transformers_layouts import distributed
from transformers_models import loss, small


def proof(model):
    """Batches of 6 and 5 rows, and the loss of the model type."""
    return [model.example(rows, torch.Generator().manual_seed(rows)) for rows in (6, 5)], loss


SPLIT = {"package": "transformers", "mesh": "tp=2", "proof": proof}


@bug(
    "NVIDIA-NeMo/Automodel/pull/3822",
    run="transformers 5.23.0 without replicated_with_grad_allreduce in its plan",
    module="model.layers.1.self_attn.k_norm",
    model=partial(small, "qwen3"),
    **SPLIT,
)
def automodel_3822(model, mesh, is_wrong):
    """Norms of queries and keys see a rank's own heads: their gradients are parts, which nobody adds up."""
    norms = ("model.layers.*.self_attn.q_norm", "model.layers.*.self_attn.k_norm")
    return distributed(
        model, tp_size=2, **({"tp_plan": dict.fromkeys(norms, "replicate")} if is_wrong else {})
    )


@bug(
    "pytorch/torchtitan/pull/1373",
    run="transformers 5.23.0 without mla_kv_a_proj in its plan",
    module="model.layers.1.self_attn.kv_a_proj_with_mqa",
    model=partial(small, "minicpm3"),
    **SPLIT,
)
def torchtitan_1373(model, mesh, is_wrong):
    """Latent attention: the part of the keys that all heads share gets the gradient of each rank's own heads."""
    plan = {"model.layers.*.self_attn.kv_a_proj_with_mqa": "replicate"}
    return distributed(model, tp_size=2, **({"tp_plan": plan} if is_wrong else {}))


@bug(
    "huggingface/transformers/pull/48205",
    run="transformers 5.23.0 without the reduction of routing weights",
    module="model.layers.1.mlp.gate",
    model=partial(small, "mixtral"),
    **SPLIT,
)
def transformers_48205(model, mesh, is_wrong):
    """Each rank has the gradient of the routing weights of its own experts, and nobody adds them up."""
    if is_wrong:
        reduced = "top_k_weights = _AllReduceBackward.apply(top_k_weights, ep_group)"
        rewrite(AllReduceEP, "__call__", reduced, "pass")
    return distributed(model, tp_size=2, ep_size=2, ep_implementation="all_reduce")
