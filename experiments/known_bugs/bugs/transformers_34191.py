"""Gradient accumulation takes the mean of the micro-batches' means, which have unequal numbers of tokens."""

import accumulated
from models import small

LINK = "https://github.com/huggingface/transformers/pull/34191"
RELEASE = "transformers 5.23.0 with the division of Trainer before 4.46"
PACKAGE = "transformers"
MESH = ""
MODULE = "model.lm_head"

batches = accumulated.batches


def model():
    return accumulated.Labelled(small("llama"))


def wrong(model, devices):
    return accumulated.Accumulated(model, lambda losses: sum(losses) / len(losses))


def mended(model, devices):
    return accumulated.Accumulated(model)
