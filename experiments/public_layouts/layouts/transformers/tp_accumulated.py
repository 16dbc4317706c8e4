"""Tensor parallelism where gradients of two micro-batches add up before a step."""

from distributed import distributed

MESH = "tp=2"
FACTORY = "small:kind={}"
MODELS = (
    "gemma3_text",
    "llama",
    "olmo2",
    "qwen3",
    "qwen3_moe",
)
OPTIONS = {"accumulate": 2}


def parallelize(model, mesh):
    return distributed(model, tp_size=2)
