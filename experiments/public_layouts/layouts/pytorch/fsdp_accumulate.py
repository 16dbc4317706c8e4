"""Two micro-batches, and gradients are reduced after the second alone."""

from accumulated import accumulated
from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs:samples=16", "batch_size": 8}


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)

    def before(is_last):
        model.set_requires_gradient_sync(is_last)

    return accumulated(model, before)
