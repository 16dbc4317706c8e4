"""One process: every device computes its rows with a replica of ``up``."""

import copy

import torch


def parallelize(model, devices):
    up = model.up
    compute = [up.forward, *(copy.deepcopy(up) for _ in devices[1:])]

    def forward(x):
        pieces = x.chunk(len(devices))
        return torch.cat([each(piece) for each, piece in zip(compute, pieces, strict=False)])

    up.forward = forward
    return model
