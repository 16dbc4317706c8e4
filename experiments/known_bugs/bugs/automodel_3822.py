"""Norms of queries and keys see a rank's own heads: their gradients are parts, which nobody adds up."""

from distributed import distributed
from models import small

LINK = "https://github.com/NVIDIA-NeMo/Automodel/pull/3822"
RELEASE = "transformers 5.23.0 without replicated_with_grad_allreduce in its plan"
PACKAGE = "transformers"
MESH = "tp=2"
MODULE = "model.layers.1.self_attn.k_norm"


def model():
    return small("qwen3")


def wrong(model, mesh):
    norms = ("model.layers.*.self_attn.q_norm", "model.layers.*.self_attn.k_norm")
    return distributed(model, tp_size=2, tp_plan=dict.fromkeys(norms, "replicate"))


def mended(model, mesh):
    return distributed(model, tp_size=2)
