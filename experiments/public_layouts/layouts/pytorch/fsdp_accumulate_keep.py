"""Two micro-batches; parameters stay gathered from the first backward to the second forward."""

from accumulated import Accumulated
from torch.distributed.fsdp import fully_shard

MESH = "dp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs:samples=16", "batch_size": 8}


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)

    def before(number):
        model.set_reshard_after_backward(number == 1)
        model.set_is_last_backward(number == 1)

    return Accumulated(model, before)
