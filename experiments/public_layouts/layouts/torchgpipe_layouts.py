"""Pipelines of torchgpipe over two devices of one process, with three micro-batches."""

import itertools

import torch
from torch import nn
from torchgpipe import GPipe
from tried import FOLDER, tried

MODEL = FOLDER + "/torchgpipe_layouts.py:{}"
OPTIONS = {"devices": "auto", "virtual": 2}


class Layers(nn.Sequential):
    """Six layers, one after the other: features in, features out."""

    def __init__(self):
        widths = (16, 24, 24, 4)
        pairs = itertools.pairwise(widths)
        super().__init__(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.Tanh())))

    def example(self, samples, generator):
        return torch.randn(samples, 16, generator=generator), torch.randn(samples, 4, generator=generator)


def layers():
    return Layers()


def gpipe(checkpoint):
    """``checkpoint`` says which activations are computed again."""

    def lay_out(model, devices):
        pipeline = GPipe(model, balance=[3, 3], devices=["cpu", "cpu"], chunks=3, checkpoint=checkpoint)
        model.forward = pipeline.forward
        return model

    return tried("layers", lay_out, mesh="")


gpipe_always = gpipe("always")
gpipe_except_last = gpipe("except_last")
gpipe_never = gpipe("never")
