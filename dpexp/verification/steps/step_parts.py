"""Step parts: how far apart two steps are, in what they compute before their optimizers."""

import math
from collections.abc import Mapping

import torch

from dpexp.verification.limits.compare import Noise
from dpexp.verification.limits.norms import Tensors, magnitude
from dpexp.verification.limits.parts import Parts, parts_of
from dpexp.verification.steps.recorder import Step


def parts_of_step(found: Step, expected: Step) -> dict[str, dict[str, Parts]]:
    """Outputs, loss and gradients, each tensor by its parts."""
    return {
        "outputs": parts_of(found.outputs, expected.outputs),
        "loss": parts_of(_scalar(found.loss), _scalar(expected.loss)),
        "gradients": _parts_of_gradients(found.gradients, expected.gradients),
    }


def last_bits(kinds: Mapping[str, Mapping[str, Parts]], step: Step, number: int) -> Noise:
    """How far the last bit of its type may set each output and the loss apart.

    A scalar in float32 is often rounded to the same number, although what it is computed from is not.
    """
    return {
        (kind, number, name): [
            step.eps.get(None if kind == "loss" else name, 0.0) * norm for norm in each.norms
        ]
        for kind in ("outputs", "loss")
        for name, each in kinds.get(kind, {}).items()
    }


def _parts_of_gradients(found: Tensors, expected: Tensors) -> dict[str, Parts]:
    """A gradient that the layout does not compute at all is not rounding, however small it is."""
    missing = [name for name, tensor in expected.items() if name not in found and magnitude(tensor) > 0]
    return parts_of(found, expected) | {name: Parts([0.0], [math.inf]) for name in missing}


def _scalar(value: float | None) -> Tensors:
    return {} if value is None else {"": torch.tensor(value, dtype=torch.float64)}
