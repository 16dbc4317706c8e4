"""1F1B with two stages on each rank."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleInterleaved1F1B

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleInterleaved1F1B, places=((0, 2), (1, 3)))
