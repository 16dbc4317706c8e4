"""Trained: which parameters the steps of a watched loop train, and what to say of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from dpexp.config.words import listed
from dpexp.strategies.modules import named_parameters


def requires_grad(model: nn.Module) -> dict[str, bool]:
    """Of each parameter, by name."""
    return {name: each.requires_grad for name, each in named_parameters(model).items()}


@dataclass
class Trained:
    """``at_begin`` are those of ``requires_grad`` when the watch began.

    ``held`` are names of parameters of optimizers that stepped, ``reached`` those that got a gradient other
    than zero, and ``changed`` those that were trained where they required a gradient otherwise.
    """

    at_begin: Mapping[str, bool]
    held: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def add(self, held: Mapping[str, nn.Parameter]) -> None:
        """A step trains these. The optimizers of adversarial nets are toggled: only then does it count."""
        self.changed |= {name for name, each in held.items() if self.at_begin.get(name) != each.requires_grad}

    def warnings(self, model: nn.Module, steps: int) -> Iterator[str]:
        """After so many steps."""
        now = requires_grad(model)
        changed = [
            name
            for name, was in self.at_begin.items()
            if name in self.changed or (name not in self.held and now.get(name, was) != was)
        ]
        if changed:
            yield f"requires_grad of {listed(changed)} was changed after dpexp.watch"
        trained = [name for name, each in now.items() if each] if steps > 1 else []
        if left := [name for name in trained if name not in self.held]:
            yield f"no optimizer that stepped holds {listed(left)}"
        if left := [name for name in trained if name in self.held and name not in self.reached]:
            yield (
                f"{listed(left)} never got a gradient other than zero: not used, detached, under no_grad, or "
                "in a reentrant checkpoint whose inputs need none?"
            )
