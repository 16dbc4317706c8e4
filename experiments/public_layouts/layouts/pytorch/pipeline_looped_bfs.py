"""Two stages on each rank, each with all its micro-batches before the next."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleLoopedBFS

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleLoopedBFS, places=((0, 2), (1, 3)))
