"""One process: the whole model is replicated to every device for each batch."""

from dpexp.parallel import DataParallel


def parallelize(model, devices):
    return DataParallel(model, devices)
