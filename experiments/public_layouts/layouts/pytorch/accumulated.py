"""Gradient accumulation as a module: its forward takes all micro-batches, forward and backward, as a training loop would."""

import torch
from pipelined import Ready
from torch import nn


class Accumulated(nn.Module):
    """Two micro-batches a step; ``before(number)`` is called before each. The rows must be even."""

    def __init__(self, model, before):
        super().__init__()
        self.layers, self.before = model.layers, before
        self.__dict__["model"] = model

    def forward(self, x, targets):
        parameters, losses = list(self.parameters()), []
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            for number, part in enumerate(zip(x.chunk(2), targets.chunk(2), strict=True)):
                self.before(number)
                losses.append(self.model(*part) / 2)
                losses[-1].backward()
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return Ready.apply(torch.stack(losses).sum().detach(), gradients, *parameters)
