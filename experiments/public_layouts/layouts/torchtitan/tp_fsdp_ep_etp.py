"""Tensor parallelism inside each expert, experts over the data ranks."""

from parallelized import parallelized

MESH = "dp=2,tp=2"
MODELS = ("llama4", "qwen3_moe", "deepseek_v3", "deepseek_v3_scored_before")


def parallelize(model, mesh):
    return parallelized(model, mesh, dp_shard=2, tp=2, ep=2, etp=2)
