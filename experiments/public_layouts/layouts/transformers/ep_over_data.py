"""Experts over data ranks, every other parameter split over them by fully_shard."""

from distributed import distributed

MESH = "dp=2"
FACTORY = "small:kind={}"
MODELS = (
    "deepseek_v3",
    "glm4_moe",
    "mixtral",
    "qwen3_moe",
)


def parallelize(model, mesh):
    return distributed(model, fsdp_size=2, ep_size=2)
