"""GPipe: all forwards, then all backwards."""

from pipelined import Pipelined
from torch.distributed.pipelining import ScheduleGPipe

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return Pipelined(model, mesh, ScheduleGPipe, places=((0,), (1,)))
