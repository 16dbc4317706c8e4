"""A pipeline: each rank has some layers, one after the other; two micro-batches."""

from pieces import Ranks, Stage


def parallelize(model, mesh):
    return Stage(model, Ranks(mesh, "pp"))
