"""Layouts along ``pp``: each rank has some of the layers, one after the other; two micro-batches."""

import torch
from catalogue import layout
from pieces import Stage, function, same
from torch import distributed


@layout("pp", model="Chain")
def right_stages(model, pp):
    """A stage does as ``Stage`` says."""
    return Stage(model, pp)


@layout("pp", model="Chain", module="12", words="the mean of the shards' means")
def mean_of_means(model, pp):
    """The mean of the micro-batches' means: in an uneven batch they have unequal numbers of rows."""

    class Pipeline(Stage):
        def one(self, x, rows):
            outputs = super().one(x, rows)
            factor = rows / (len(outputs) * self.micro_batches)
            return function(outputs, same, lambda gradient: gradient * factor)

    return Pipeline(model, pp)


@layout("pp", model="Chain", module="6,9")
def own_gradient(model, pp):
    """A stage does not get the gradient from the next one."""

    class Pipeline(Stage):
        def send_gradient(self, gradient):
            pass

        def receive_gradient(self, gradient):
            return gradient

    return Pipeline(model, pp)


@layout("pp", model="Chain", module="7,10")
def same_memory(model, pp):
    """The second micro-batch overwrites what the backward of the first still needs."""
    memory = {}

    class Pipeline(Stage):
        def receive(self, x):
            received = memory.setdefault(x.dtype, torch.empty(99, x.shape[1], dtype=x.dtype))[: len(x)]
            distributed.recv(received, pp.rank - 1)
            return received

    return Pipeline(model, pp)
