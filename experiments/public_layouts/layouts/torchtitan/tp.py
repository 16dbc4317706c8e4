"""Tensor parallelism, the sequence split between blocks."""

from parallelized import parallelized

MESH = "tp=2"
MODELS = ("llama3", "llama4", "qwen3", "qwen3_tied", "qwen3_moe", "deepseek_v3", "deepseek_v3_scored_before")


def parallelize(model, mesh):
    return parallelized(model, mesh, tp=2)
