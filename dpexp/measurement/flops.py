"""FLOPs: the floating-point operations of a step; a multiplication and an addition are two.

    CountingMode            sees the operators of a step, those of backward and recomputation included
      CountFlops            adds up PyTorch's own formulas: products of matrices, convolutions, attention
      CountCollectives      what ranks send (collectives.py)

The formulas are those of ``torch.utils.flop_counter``. Its own mode would import ``torch._dynamo``, which
takes 0.7 s, and counts an operator of a DTensor on every rank in full. PyTorch up to 2.14 has no formula for
attention on the CPU: it is here, and is that of accelerators.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with mode:`` counts each operator, in the threads that have the mode."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: else the first operator imports ``torch._dynamo``."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a DTensor: its operators on local tensors come next
        return self.counted(func, args, kwargs or {})

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call the operator ``func`` and count it; returns its outputs."""
        raise NotImplementedError


class CountFlops(CountingMode):  # type: ignore[no-untyped-call]
    """``total`` is that of all operators inside for which there is a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._lock = threading.Lock()  # replicas compute in several threads

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        outputs, operator, flops = func(*args, **kwargs), getattr(func, "_overloadpacket", func), 0
        if operator in OF_ATTENTION:
            flops = OF_ATTENTION[operator](*args)
        elif operator in flop_registry:
            flops = int(flop_registry[operator](*args, **kwargs, out_val=outputs))
        with self._lock:
            self.total += flops
        return outputs


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    """q kᵀ and p v: query (batch, heads, queries, width), key and value (batch, heads or fewer, keys, width).

    As in PyTorch's formulas, a mask and causal attention do not lower the figure.
    """
    return 2 * _scores(query, key) * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    _: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any
) -> int:
    """q kᵀ again, ∂out vᵀ, pᵀ ∂out, ∂s k and ∂sᵀ q."""
    return 2 * _scores(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: torch.Tensor, key: torch.Tensor) -> int:
    """How many scores there are: each key for each query of each head."""
    return query.shape[:-1].numel() * key.shape[-2]


OF_ATTENTION: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""{operator: its FLOPs from its arguments}"""
