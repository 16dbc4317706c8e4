"""Criterion: a loss function that a user gave, with the tensors that it keeps from call to call."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from dpexp import tensors
from dpexp.copies import TensorCopies
from dpexp.devices import is_autocast_enabled


class Criterion:
    """Computes where the outputs are, and in their type: with copies of the function's tensors.

    The user's function stays as it was. ``model`` is the one of which it may be a method.
    """

    def __init__(self, function: Callable[..., Any], model: nn.Module | None = None) -> None:
        self._function = function
        self._model = weakref.ref(model if model is not None else nn.Module())  # a sharded one must end
        self._fits: Any = None

    @property
    def is_method(self) -> bool:
        """Whether it is a method of a model."""
        return isinstance(getattr(self._function, "__self__", None), nn.Module)

    def __call__(self, outputs: Any, targets: Any) -> Any:
        self._fit(outputs)
        return self._function(outputs, targets)

    def _fit(self, outputs: Any) -> None:
        """Take a copy whose tensors have the device and floating-point type of the outputs.

        Under autocast, which casts by itself, they keep their type.
        """
        like = next((each for each in tensors.walk(outputs) if each.is_floating_point()), None)
        if like is None or not isinstance(self._function, nn.Module | partial):
            return
        dtype, is_cast = like.dtype, is_autocast_enabled(like.device.type)
        fits = type(like), like.device, None if is_cast else dtype

        def change(tensor: Tensor) -> Tensor:
            return (tensor if is_cast else tensors.cast(tensor, dtype)).to(like.device)

        if fits != self._fits:
            self._function, self._fits = self._copied(self._model(), change), fits

    def copied(self, model: nn.Module | None = None, device: torch.device | None = None) -> Criterion:
        """Another one with what this one has kept so far; a method becomes that of this model, a copy.

        A function that cannot be copied is shared.
        """
        made = copy.copy(self)
        made._model, made._fits = self._model if model is None else weakref.ref(model), None
        if not isinstance(self._function, FunctionType | BuiltinFunctionType):
            made._function = self._copied(made._model(), lambda tensor: tensor.to(device))
        return made

    def _copied(self, model: nn.Module | None, change: Callable[[Tensor], Tensor]) -> Any:
        """The function with changed copies of its tensors, and this model for its own; else itself."""
        parts, own = _parts(model), _parts(self._model())
        memo: dict[int, Any] = {id(part): parts[name] for name, part in own.items() if name in parts}
        for each in self._function.parameters() if isinstance(self._function, nn.Module) else ():
            memo.setdefault(id(each), nn.Parameter(change(each.detach().clone()), each.requires_grad))
        with suppress(Exception), TensorCopies(change):  # of any kind: the user's
            return copy.deepcopy(self._function, memo)
        return self._function


def _parts(model: nn.Module | None) -> dict[str, nn.Module | nn.Parameter]:
    """The modules and parameters of a model, by name."""
    return {} if model is None else dict(model.named_modules()) | dict(model.named_parameters())
