"""Two micro-batches; parameters stay gathered from the first backward to the second forward."""

from accumulated import accumulated
from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs:samples=16", "batch_size": 8}


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)

    def before(is_last):
        model.set_reshard_after_backward(is_last)
        model.set_is_last_backward(is_last)

    return accumulated(model, before)
