"""GPipe: all forwards, then all backwards."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleGPipe

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleGPipe, places=((0,), (1,)))
