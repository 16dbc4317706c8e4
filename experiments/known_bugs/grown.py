"""Experts whose weights are as large as after some training: initial ones of torchtitan make a difference of 1e-6."""

import torch


def grown(model, factor=20.0):
    """The model with larger weights of routers and experts."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".moe." in name:
                parameter *= factor
    return model
