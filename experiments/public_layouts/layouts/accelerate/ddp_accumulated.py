"""Replicas on data ranks, and gradients of two micro-batches that add up before a step."""

from accelerated import prepared

MESH = "dp=2"
MODELS = ("transformer",)
OPTIONS = {"accumulate": 2}


def parallelize(model, mesh):
    return prepared(model)
