"""Gradient accumulation adds up the means of the micro-batches of a model that does not take the number of all tokens."""

import accumulated
from models import small

LINK = "https://github.com/huggingface/transformers/issues/37766"
RELEASE = "transformers 5.23.0 without the division that Trainer 4.47 left out"
PACKAGE = "transformers"
MESH = ""
MODULE = "model.lm_head"

batches = accumulated.batches


def model():
    return accumulated.Labelled(small("llama"))


def wrong(model, devices):
    return accumulated.Accumulated(model, sum)


def mended(model, devices):
    return accumulated.Accumulated(model)
