"""DualPipeV: forwards and backwards of two micro-batches at a time."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleDualPipeV

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleDualPipeV, places=((0, 3), (1, 2)))
