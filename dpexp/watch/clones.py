"""Clones: detached copies of what passes through a loop, the same numbers once.

The outputs of a call are the arguments of the loss, reshaped or not, and the gradient at these is the one at
the outputs: of a language model each has rows x tokens x vocabulary numbers.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from dpexp import tensors


class Clones:
    """Of one loop. A clone lives as long as someone else has it.

    A tensor in the memory of one that was cloned, and with the same numbers, gets a view of that clone. That
    the memory is the same is only a hint: PyTorch's count of writes (``_version``) misses those through
    ``.data``, of batch norms, of kernels that a user wrote, and of a CUDA graph.
    """

    def __init__(self) -> None:
        self._latest: dict[Any, tuple[weakref.ref[torch.Tensor], int]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A detached clone, or a view of one; whoever gets it must not write to it."""
        tensor = tensor.detach()
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
            return tensor.clone()
        try:
            key = tensor.untyped_storage().data_ptr(), tensor.dtype, tensor.device
        except RuntimeError:  # it has no memory, as inside of a transform of torch.func
            return tensor.clone()
        known, start = self._latest.get(key, (lambda: None, 0))
        clone = known()
        if clone is not None and (shared := _view(clone, start, tensor)) is not None:
            return shared
        clone = tensor.clone()
        if clone.stride() == tensor.stride():  # it has no gaps
            self._latest[key] = weakref.ref(clone), int(tensor.storage_offset())
        return clone

    def of_tree(self, value: Any) -> Any:
        """The pytree with such clones."""
        return tensors.map_tensors(self.of, value)

    def prune(self) -> None:
        """Forget those that nobody has any more."""
        self._latest = {key: each for key, each in self._latest.copy().items() if each[0]() is not None}


def _view(clone: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor in the clone, if it has its numbers; ``start`` is where the clone was in its memory."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    first = tensor.storage_offset() - start
    last = first + sum((size - 1) * stride for size, stride in strides)
    if not tensor.numel() or first < 0 or last >= clone.numel():
        return None
    view = clone.as_strided(tensor.shape, tensor.stride(), clone.storage_offset() + first)
    return view if torch.equal(view, tensor) else None
