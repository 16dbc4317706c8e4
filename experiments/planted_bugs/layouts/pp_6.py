"""A pipeline: a stage receives every micro-batch into the same memory."""

import torch
from pieces import Ranks, Stage
from torch import distributed


class Pipeline(Stage):
    def receive(self, x):
        received = self.__dict__.setdefault("memory", torch.empty(99, x.shape[1], dtype=x.dtype))[: len(x)]
        distributed.recv(received, self.ranks.rank - 1)
        return received


def parallelize(model, mesh):
    return Pipeline(model, Ranks(mesh, "pp"))
