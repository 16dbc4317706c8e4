"""Parameters split over two ranks, and two replicas of that."""

from parallelized import parallelized

MESH = "dp_replicate=2,dp_shard=2"
MODELS = ("llama3", "llama4", "qwen3", "qwen3_tied", "qwen3_moe", "deepseek_v3")


def parallelize(model, mesh):
    return parallelized(model, mesh, dp_replicate=2, dp_shard=2)
