"""Loss tensors: a loss that holds tensors (class weights, say), beside the outputs that it is computed of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpexp import tensors

_Loss = Callable[..., Any]


class LossTensors:
    """The loss, or a copy of it whose tensors have the device and the floating-point type of the outputs.

    It looks into modules and into the arguments of a ``functools.partial``. Under autocast, which casts
    by itself, the tensors keep their type.
    """

    def __init__(self, loss: _Loss) -> None:
        self._loss = loss
        self._like: tuple[type[Tensor], torch.device, torch.dtype | None] | None = None

    def beside(self, outputs: Any) -> _Loss:
        """The loss to call with these outputs; a copy takes the place of the one before."""
        like = next((each for each in tensors.walk(outputs) if each.is_floating_point()), None)
        if like is None or not isinstance(self._loss, nn.Module | partial):
            return self._loss
        key = type(like), like.device, None if _is_autocast(like.device.type) else like.dtype
        if key != self._like:
            change = partial(_changed, device=like.device, dtype=key[2])
            fits = all(change(tensor) is tensor for tensor in _held(self._loss))
            self._loss, self._like = self._loss if fits else _copied(self._loss, change), key
        return self._loss


class TensorCopies(TorchFunctionMode):
    """Inside, ``deepcopy`` makes changed copies of tensors, without their graphs."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = self._change(tensor.detach().clone())
        return memo[id(tensor)]


def _is_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _changed(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return (tensor if dtype is None else tensors.cast(tensor, dtype)).to(device)


def _held(loss: Any) -> list[Tensor]:
    """The tensors of a loss."""
    if isinstance(loss, partial):
        return [*_held(loss.func), *tensors.walk((loss.args, loss.keywords))]
    if not isinstance(loss, nn.Module):
        return []
    attributes = [each for part in loss.modules() for each in vars(part).values()]
    plain = [each for each in attributes if isinstance(each, Tensor)]
    return [*loss.parameters(), *loss.buffers(), *plain]


def _copied(loss: _Loss, change: Callable[[Tensor], Tensor]) -> _Loss:
    parameters = [each for each in _held(loss) if isinstance(each, nn.Parameter)]
    memo = {id(each): nn.Parameter(change(each.detach()), each.requires_grad) for each in parameters}
    with TensorCopies(change):
        return copy.deepcopy(loss, memo)
