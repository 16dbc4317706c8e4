"""Random layers: which modules draw random numbers in training.

All virtual devices share the generator of the CPU, and replicas on one accelerator share its generator. If
they drew at the same time, the order of threads would decide who gets which numbers. So such replicas
compute one after another (parallel_apply.py), and the same seed gives the same bits.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

PROBABILITIES = ("p", "dropout", "dropout_p", "dropout_prob", "drop_prob", "drop_rate")
"""Attributes in which dropout layers, recurrent layers, attention and stochastic depth keep theirs."""

DRAWS = "_dpexp_draws"
"""An attribute of modules whose own forward was seen to draw random numbers."""

RANDOM_LAYERS = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def is_random_layer(layer: nn.Module) -> bool:
    """Whether the layer itself, without its submodules, draws random numbers in training.

    A layer is known by its class, or by a probability (above 0, at most 1) in one of its attributes. A
    forward that draws without either (a bare ``torch.rand``) is to be marked (``mark_drawing``).
    """
    values = [vars(layer).get(name) for name in PROBABILITIES]
    return isinstance(layer, RANDOM_LAYERS) or any(isinstance(p, int | float) and 0 < p <= 1 for p in values)


def mark_drawing(model: nn.Module, names: Iterable[str]) -> None:
    """Mark the modules of these names as random, although no attribute says so."""
    for module in map(model.get_submodule, names):
        if not is_random_layer(module):
            vars(module)[DRAWS] = True


def draws_random_numbers(module: Any) -> bool:
    """Whether a layer of the module is random and in training mode.

    For a callable that is not a module, its attribute ``module`` is examined.
    """
    if not isinstance(module, nn.Module):
        module = getattr(module, "module", None)
    return isinstance(module, nn.Module) and any(
        layer.training and (is_random_layer(layer) or DRAWS in vars(layer)) for layer in module.modules()
    )
