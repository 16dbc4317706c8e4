"""Split parameters, and some activations that are computed again in the backward."""

from parallelized import parallelized

MESH = "dp=2"
MODELS = ("llama3", "llama4", "qwen3", "qwen3_tied", "qwen3_moe", "deepseek_v3")


def parallelize(model, mesh):
    return parallelized(model, mesh, {"checkpoint": "selective"}, dp_shard=2)
