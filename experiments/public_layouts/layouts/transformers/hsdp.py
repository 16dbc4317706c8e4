"""Parameters split over two data ranks and replicated over two."""

from distributed import distributed

MESH = "dp_replicate=2,dp_shard=2"
FACTORY = "small:kind={}"
MODELS = (
    "llama",
    "mixtral",
)


def parallelize(model, mesh):
    return distributed(model, dp_replicate_size=2, fsdp_size=2)
