"""Each rank has the gradient of the routing weights of its own experts, and nobody adds them up."""

from distributed import distributed
from models import small
from rewritten import rewrite
from transformers.distributed.expert_parallel import AllReduceEP

LINK = "https://github.com/huggingface/transformers/pull/48205"
RELEASE = "transformers 5.23.0 without the reduction of routing weights"
PACKAGE = "transformers"
MESH = "tp=2"
MODULE = "model.layers.1.mlp.gate"


def model():
    return small("mixtral")


def wrong(model, mesh):
    rewrite(
        AllReduceEP, "__call__", "top_k_weights = _AllReduceBackward.apply(top_k_weights, ep_group)", "pass"
    )
    return mended(model, mesh)


def mended(model, mesh):
    return distributed(model, tp_size=2, ep_size=2, ep_implementation="all_reduce")
