"""The composable replicate: data parallelism without a wrapper."""

from torch.distributed._composable.replicate import replicate

MESH = "dp=2"
MODELS = ("net", "text")


def parallelize(model, mesh):
    return replicate(model, device_mesh=mesh)
