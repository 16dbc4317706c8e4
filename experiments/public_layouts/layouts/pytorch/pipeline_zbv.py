"""Zero bubble in a V: the first rank has the first and the last stage."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleZBVZeroBubble

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleZBVZeroBubble, places=((0, 3), (1, 2)))
