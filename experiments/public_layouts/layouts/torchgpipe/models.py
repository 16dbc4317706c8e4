"""A sequential model, which torchgpipe asks for."""

import itertools

import torch
from torch import nn

OPTIONS = {}


class Layers(nn.Sequential):
    """Six layers: features in, features out."""

    def __init__(self):
        widths = (16, 24, 24, 4)
        pairs = itertools.pairwise(widths)
        super().__init__(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.Tanh())))

    def example(self, samples, generator):
        return torch.randn(samples, 16, generator=generator), torch.randn(samples, 4, generator=generator)


def layers():
    return Layers()
