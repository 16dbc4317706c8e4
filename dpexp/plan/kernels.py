"""Kernels: what an accelerator computes otherwise than a CPU, where that changes what is kept for backward.

attention     one operator keeps queries, keys, values, outputs and a logarithm a row, never the scores
dropout       one operator keeps a mask of a byte a number
autocast      normalizations, softmax, losses, powers and sums compute in float32
optimizers    those of torch.optim update all parameters together (``foreach``), with temporaries as large

Their operators have rules for tensors without data, so a plan on a CPU runs the accelerator's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dpexp import tensors
from dpexp.devices import is_autocast_enabled

_IN_FLOAT32 = frozenset(
    ["acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "reciprocal", "rsqrt", "sinh", "tan", "cumprod", "cumsum", "dist", "norm", "prod", "renorm", "sum", "softmax", "log_softmax", "softmin", "softplus", "layer_norm", "group_norm", "rms_norm", "normalize", "cosine_similarity", "cdist", "pdist", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "nll_loss", "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "hinge_embedding_loss", "margin_ranking_loss", "multilabel_margin_loss", "multi_margin_loss", "poisson_nll_loss", "soft_margin_loss", "triplet_margin_loss"]
)
"""PyTorch's list of the functions that autocast computes in float32 on CUDA, by name."""


class AcceleratorKernels(TorchFunctionMode):
    """Inside, functions that have another kernel on an accelerator use its operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _IN_FLOAT32 and is_autocast_enabled("cpu"):
            args, kwargs = tensors.cast((args, kwargs), torch.float32)
            with torch.autocast("cpu", enabled=False):
                return func(*args, **kwargs)
        if func is torch.dropout:
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and not any(hasattr(each, "placements") for each in args):
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or not 0 < p < 1:
        return torch.dropout(input, p, train)
    return torch.native_dropout(input, p, train)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As CUDA chooses: flash for short types without a mask, else the kernel that saves memory, else neither."""
    if is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    is_short = query.dtype in (torch.float16, torch.bfloat16)
    has_heads = query.dim() == 4 and query.shape[-1] == value.shape[-1] and query.shape[-1] <= 256
    given: dict[str, Any] = {"scale": scale}
    aten = torch.ops.aten
    if has_heads and is_short and attn_mask is None:
        flash = aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, **given)[0]
    heads_alike = key.shape[1] == query.shape[1] if query.dim() == 4 else False
    if has_heads and heads_alike and query.dtype != torch.float64 and not _requires_grad(attn_mask):
        if attn_mask is not None:
            shape = (*query.shape[:-1], key.shape[-2])
            bias = (
                attn_mask if attn_mask.dtype != torch.bool else torch.zeros_like(attn_mask, dtype=query.dtype)
            )
            attn_mask = bias.expand(shape)
        efficient = aten._scaled_dot_product_efficient_attention
        needs = any(map(_requires_grad, (query, key, value)))
        return efficient(query, key, value, attn_mask, needs, dropout_p, is_causal, **given)[0]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _requires_grad(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def update_together(optimizer: torch.optim.Optimizer) -> None:
    """Let it choose as on an accelerator: all parameters together, unless it was told otherwise."""
    for group in optimizer.param_groups:
        is_free = "foreach" in group and group["foreach"] is None and not group.get("fused")
        if is_free and not any(each.grad is not None and each.grad.is_sparse for each in group["params"]):
            group["foreach"] = True
