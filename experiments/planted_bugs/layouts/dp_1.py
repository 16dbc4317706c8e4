"""Data parallelism: the gradients are averaged over the ranks; ``norm`` is small, and stays as it is."""

from pieces import Ranks, change_gradients


def parallelize(model, mesh):
    dp = Ranks(mesh, "dp")
    large = [each for name, each in model.named_parameters() if "norm" not in name]
    change_gradients(large, dp.mean)
    return model
