"""One process: ``counter`` computes with a copy of its buffers, so that no device writes to those of another."""

import copy


def parallelize(model, devices):
    model.counter.forward = copy.deepcopy(model.counter).forward
    return model
