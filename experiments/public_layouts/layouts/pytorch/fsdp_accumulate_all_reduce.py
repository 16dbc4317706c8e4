"""Two micro-batches over split replicas; the replicas are averaged after the second alone."""

from accumulated import accumulated
from torch.distributed.fsdp import fully_shard

MESH = "dp_replicate=2,dp_shard=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs:samples=16", "batch_size": 8}


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)

    def before(is_last):
        model.set_requires_all_reduce(is_last)

    return accumulated(model, before)
