"""1F1B: one forward, one backward."""

from pipelined import pipelined
from torch.distributed.pipelining import Schedule1F1B

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, Schedule1F1B, places=((0,), (1,)))
