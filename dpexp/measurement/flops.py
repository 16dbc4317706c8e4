"""FLOPs: floating-point operations of one operator of PyTorch; a multiplication and an addition are two.

PyTorch's registry of formulas lacks attention on the CPU up to 2.14, and the layers that are one operator
when no gradient is wanted. Their formulas are here, so that every version gives the same figure::

    forward     q kᵀ   p v                                 each 2 · queries · keys · width, for every head
    backward    q kᵀ   ∂out vᵀ   pᵀ ∂out   ∂s k   ∂sᵀ q    the first is computed again

As in PyTorch's, a mask and causal attention do not lower the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten


def flops_of(operator: Any) -> Callable[[Any, Any, Any], int | None]:
    """Gives the FLOPs of a call of an operator (an overload packet); None without a formula for it.

    The call is known by its arguments, those with a name, and outputs.
    """
    if operator in FORMULAS:
        formula = FORMULAS[operator]
        return lambda args, kwargs, outputs: formula(*args)
    if operator in flop_registry:
        registered = flop_registry[operator]
        return lambda args, kwargs, outputs: int(registered(*args, **kwargs, out_val=outputs))
    return lambda args, kwargs, outputs: None


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    """Of query (batch, heads, queries, width), key and value (batch, heads or fewer, keys, width)."""
    return 2 * _scores(query, key) * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    _gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> int:
    return 2 * _scores(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: torch.Tensor, key: torch.Tensor) -> int:
    """How many scores there are: each key for each query of each head."""
    return query.shape[:-1].numel() * key.shape[-2]


def _multi_head(
    query: torch.Tensor, key: torch.Tensor, _value: torch.Tensor, width: int, *_: Any
) -> int | None:
    """Of query (batch, queries, width) and key (batch, keys, width), and projections; None of nested ones."""
    if query.is_nested:
        return None
    rows, others = query.shape[:-1].numel(), key.shape[:-1].numel()
    projections = 2 * width * width * (2 * rows + 2 * others)
    return projections + 4 * rows * key.shape[-2] * width


def _encoder_layer(*args: Any) -> int | None:
    source, width, inner = args[0], args[1], args[14]
    attention = _multi_head(source, source, source, width)
    return None if attention is None else attention + 4 * source.shape[:-1].numel() * width * inner.shape[0]


FORMULAS: Mapping[Any, Callable[..., int | None]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._native_multi_head_attention: _multi_head,
    aten._transformer_encoder_layer_fwd: _encoder_layer,
}
"""{operator: its FLOPs from its arguments}; of the same schema in torch 2.11 to 2.15."""
