"""Tensor parallelism, and parameters split over data ranks, by the model type's own plans."""

from distributed import distributed

MESH = "dp=2,tp=2"
FACTORY = "small:kind={}"
MODELS = (
    "cohere2",
    "deepseek_v3",
    "gemma2",
    "glm4_moe",
    "llama",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen3",
    "qwen3_moe",
)


def parallelize(model, mesh):
    return distributed(model, tp_size=2, fsdp_size=2)
