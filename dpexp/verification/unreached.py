"""Unreached: modules that no verified step has called, and parameters that never had a gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from dpexp.verification.compare import magnitude
from dpexp.verification.recorder import Step


@dataclass
class Unreached:
    """``called`` and ``trained`` are the names of modules and parameters that steps have reached."""

    called: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)

    def add(self, step: Step) -> None:
        """What a step of the single device has reached."""
        self.called |= {name for name, _ in step.modules}
        new = {name: tensor for name, tensor in step.gradients.items() if name not in self.trained}
        self.trained |= {name for name, tensor in new.items() if magnitude(tensor) > 0}

    def modules(self, model: nn.Module) -> list[str]:
        """The outermost modules that were never called and none of whose parameters had a gradient.

        A forward may use the parameters of a module without calling it.
        """
        found: list[str] = []
        for name, part in model.named_modules():
            is_inside = any(name.startswith(f"{outer}.") for outer in found)
            if not is_inside and name and self._is_left_out(name, part):
                found.append(name)
        return found

    def _is_left_out(self, name: str, part: nn.Module) -> bool:
        inside = [each for each, _ in part.named_modules(prefix=name)]
        used = [each for each, _ in part.named_parameters(prefix=name) if each in self.trained]
        is_container = not list(part.parameters()) and bool(list(part.children()))
        return not (used or is_container or any(each in self.called for each in inside))

    def parameters(self, model: nn.Module) -> list[str]:
        """The parameters that are trained and never had a gradient that is not zero."""
        named = model.named_parameters()
        return [name for name, tensor in named if tensor.requires_grad and name not in self.trained]
