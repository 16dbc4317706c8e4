"""Sequence parallelism: each rank normalizes a part of the tokens; ``norm`` is on every rank."""

from pieces import Ranks


def parallelize(model, mesh):
    tp = Ranks(mesh, "tp")
    model.norm.register_forward_pre_hook(lambda module, inputs: tp.split(*inputs, dim=1))
    model.norm.register_forward_hook(lambda module, inputs, outputs: tp.gather(outputs, dim=1))
    return model
