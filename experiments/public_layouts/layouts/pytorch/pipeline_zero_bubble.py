"""Zero bubble: the gradients of inputs and of weights apart."""

from pipelined import pipelined
from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

MESH = "pp=2"
MODELS = ("chain",)
OPTIONS = {"data": "models.py:pairs", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, ScheduleInterleavedZeroBubble, places=((0, 2), (1, 3)))
