"""Tensor parallelism, its parts split over the data ranks."""

from parallelized import parallelized

MESH = "dp=2,tp=2"
MODELS = ("llama3", "llama4", "qwen3", "qwen3_tied", "qwen3_moe", "deepseek_v3")


def parallelize(model, mesh):
    return parallelized(model, mesh, dp_shard=2, tp=2)
