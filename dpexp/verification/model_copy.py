"""Model copy: a model again, or a batch, in another floating-point type."""

from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.copies import copied_module
from dpexp.data.batch import Batch


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with parameters and buffers of this type; each tensor is cast while it is copied.

    So is what a forward has left in an attribute.
    """
    memo: dict[int, Any] = {
        id(tensor): _copied(tensor, dtype)
        for tensor in (*model.parameters(), *model.buffers())
        if type(tensor) in (nn.Parameter, torch.Tensor) and tensor.is_leaf
    }
    return tensors.cast_module(copied_module(model, memo, partial(tensors.cast, dtype=dtype)), dtype)


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch in memory of its own, with floating-point inputs and targets of this type."""
    return batch.copied().changed(partial(tensors.cast, dtype=dtype))


def _copied(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    new: torch.Tensor = tensors.cast(tensor.detach(), dtype)
    if new.data_ptr() == tensor.data_ptr():
        new = new.clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)
