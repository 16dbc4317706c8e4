"""Data parallelism: the gradients are added up over the ranks for every name, then divided."""

from pieces import Ranks, change_gradients


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    named = model.named_parameters(remove_duplicate=False)
    change_gradients([parameter for _, parameter in named], dp.sum)
    change_gradients(model.parameters(), lambda gradient: gradient / dp.size)
    return model
