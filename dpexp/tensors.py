"""Nested values: what models take and give, as dict, list, tuple, namedtuple and dataclass of tensors.

Everything that is neither a container nor a tensor (None, numbers, strings) is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn


def walk(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a nested value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from walk(getattr(value, field.name))


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The nested value with ``change`` applied to every tensor; containers keep their type."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(change, item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(change, item) for item in value)
    if _is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{name: map_tensors(change, getattr(value, name)) for name in fields}
        )
    return value


def shapes(value: Any) -> list[list[int]]:
    """The shapes of all tensors of a nested value, in order; a scalar's shape is ``[]``."""
    return [list(tensor.shape) for tensor in walk(value)]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in the dtype (complex ones in its complex kind); ids and labels stay."""
    return map_tensors(lambda tensor: _cast(tensor, dtype), value)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module, its parameters and buffers cast in place as ``cast`` does: complex ones stay complex."""
    module._apply(lambda tensor: _cast(tensor, dtype))  # type: ignore[no-untyped-call]
    return module


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
