"""Parameters split over data ranks by the model type's own plan for fully_shard."""

from distributed import distributed

MESH = "dp=2"
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
    return distributed(model, fsdp_size=2)
