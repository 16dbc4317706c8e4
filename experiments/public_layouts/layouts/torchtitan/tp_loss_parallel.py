"""Tensor parallelism whose logits stay split by the vocabulary."""

from parallelized import parallelized

MESH = "tp=2"
MODELS = ("llama3", "llama4", "qwen3", "qwen3_tied", "qwen3_moe", "deepseek_v3")


def parallelize(model, mesh):
    return parallelized(model, mesh, {"loss_parallel": True}, tp=2)
