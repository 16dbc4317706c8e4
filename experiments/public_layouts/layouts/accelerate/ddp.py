"""Replicas on data ranks."""

from accelerated import prepared

MESH = "dp=2"
MODELS = ("transformer",)


def parallelize(model, mesh):
    return prepared(model)
