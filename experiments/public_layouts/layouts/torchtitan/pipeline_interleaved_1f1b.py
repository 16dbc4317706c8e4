"""torchtitan's pipeline of two ranks, schedule Interleaved1F1B."""

from pipelined import pipelined

MESH = "pp=2"
MODELS = ("llama3_with_loss",)
OPTIONS = {"data": "models.py:texts", "loss": "", "batch_size": 4}


def parallelize(model, mesh):
    return pipelined(model, mesh, "Interleaved1F1B")
