"""Tensor parallelism, the sequence split between blocks."""

from parallelized import parallelized

MESH = "tp=2"
MODELS = ("llama3", "llama4")


def parallelize(model, mesh):
    return parallelized(model, mesh, tp=2)
