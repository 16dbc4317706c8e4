"""Loss tensors: a loss that holds tensors (class weights, say), beside the outputs that it is computed of."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpexp import tensors

_Loss = Callable[..., Any]


class LossTensors:
    """The loss, or a copy of it whose tensors have the device and the floating-point type of the outputs.

    It looks into modules and into the arguments of a ``functools.partial``. Under autocast, which casts
    by itself, the tensors keep their type.
    """

    def __init__(self, loss: _Loss) -> None:
        self._loss = loss
        self._copies: dict[tuple[type[Tensor], torch.device, torch.dtype | None], _Loss] = {}

    def beside(self, outputs: Any) -> _Loss:
        """The loss to call with these outputs; a copy is made once."""
        if not isinstance(self._loss, nn.Module | partial):
            return self._loss
        like = next((each for each in tensors.walk(outputs) if each.is_floating_point()), None)
        if like is None:
            return self._loss
        dtype = None if _is_autocast(like.device.type) else like.dtype
        key = type(like), like.device, dtype  # of type FakeTensor in a dry run
        if key not in self._copies:
            change = partial(_changed, device=like.device, dtype=dtype)
            fits = all(change(tensor) is tensor for tensor in _held(self._loss))
            self._copies[key] = self._loss if fits else _copied(self._loss, change)
        return self._copies[key]


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


def _copied(loss: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(loss, partial):
        args, keywords = tensors.map_tensors(change, (loss.args, loss.keywords))
        return partial(_copied(loss.func, change), *args, **keywords)
    if not isinstance(loss, nn.Module):
        return loss
    made = copy.deepcopy(loss)._apply(change)  # type: ignore[no-untyped-call]
    for part in made.modules():
        vars(part).update({key: change(each) for key, each in vars(part).items() if isinstance(each, Tensor)})
    return made
