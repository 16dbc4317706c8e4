"""One process: ``head`` computes equally many rows on every device."""

import torch
from pieces import replica


def parallelize(model, devices):
    head = model.head
    compute = [head.forward, *(replica(head) for _ in devices[1:])]

    def forward(x):
        rows = len(x) // len(devices)
        outputs = torch.zeros(len(x), head.out_features, dtype=x.dtype)
        for number, each in enumerate(compute):
            own = slice(number * rows, (number + 1) * rows)
            outputs[own] = each(x[own])
        return outputs

    head.forward = forward
    return model
