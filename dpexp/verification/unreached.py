"""Unreached: the parameters that never had a gradient in a verified step."""

from __future__ import annotations

from torch import nn

from dpexp.verification.compare import magnitude
from dpexp.verification.recorder import Step


class Unreached:
    """``trained`` are the names of the parameters that steps have reached."""

    def __init__(self) -> None:
        self.trained = set[str]()

    def add(self, step: Step) -> None:
        """What a step of the single device has reached."""
        new = {name: tensor for name, tensor in step.gradients.items() if name not in self.trained}
        self.trained |= {name for name, tensor in new.items() if magnitude(tensor) > 0}

    def parameters(self, model: nn.Module) -> list[str]:
        """The parameters that are trained and never had a gradient that is not zero."""
        named = model.named_parameters()
        return [name for name, tensor in named if tensor.requires_grad and name not in self.trained]
