"""Latent attention: the part of the keys that all heads share gets the gradient of each rank's own heads."""

from distributed import distributed
from models import small

LINK = "https://github.com/pytorch/torchtitan/pull/1373"
RELEASE = "transformers 5.23.0 without mla_kv_a_proj in its plan"
PACKAGE = "transformers"
MESH = "tp=2"
MODULE = "model.layers.1.self_attn.kv_a_proj_with_mqa"


def model():
    return small("minicpm3")


def wrong(model, mesh):
    plan = {"model.layers.*.self_attn.kv_a_proj_with_mqa": "replicate"}
    return distributed(model, tp_size=2, tp_plan=plan)


def mended(model, mesh):
    return distributed(model, tp_size=2)
