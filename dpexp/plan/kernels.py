"""Kernels: what an accelerator computes otherwise than a CPU, where that changes what is kept for backward.

attention     one operator keeps queries, keys, values, outputs and a logarithm a row, never the scores
dropout       one operator keeps a mask of a byte a number
autocast      normalizations, softmax, losses, powers and sums compute in float32
optimizers    those of torch.optim update all parameters together (``foreach``), with temporaries as large

Their operators have rules for tensors without data, so a plan on a CPU runs the accelerator's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dpexp import tensors
from dpexp.devices import is_autocast_enabled

_IN_FLOAT32 = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "pow",
    "__pow__", "__rpow__", "reciprocal", "rsqrt", "sinh", "tan", "cumprod", "cumsum", "dist",
    "norm", "prod", "renorm", "sum", "softmax", "log_softmax", "softmin", "softplus", "layer_norm",
    "group_norm", "rms_norm", "normalize", "cosine_similarity", "cdist", "pdist",
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "nll_loss",
    "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "multi_margin_loss", "poisson_nll_loss",
    "soft_margin_loss", "triplet_margin_loss",
))  # fmt: skip
"""PyTorch's list of the functions that autocast computes in float32 on CUDA, by name."""


@contextmanager
def accelerator_kernels() -> Iterator[None]:
    """Inside, functions that have another kernel on an accelerator use its operators, in backward, too.

    PyTorch leaves a mode while it handles ``backward``, in which a checkpoint computes its part again.
    """
    autograd: Any = torch.autograd
    mode, run = _Kernels(), autograd._engine_run_backward

    def run_backward(*args: Any, **options: Any) -> Any:
        with mode:
            return run(*args, **options)

    with patch.object(autograd, "_engine_run_backward", run_backward), mode:
        yield


@contextmanager
def without_onednn() -> Iterator[None]:
    """Inside, LSTMs consist of operators of PyTorch; oneDNN hides what it keeps for backward."""
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


@contextmanager
def unread_numbers() -> Iterator[None]:
    """Inside, nothing reads the numbers of tensors without data that can do without.

    Checks of libraries pass. Transformers takes a row for one sequence, as it does where its positions show
    that; it would give attention a mask that others do not need.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "_check_tensor_all_with", lambda *check: None))
        masks: Any = sys.modules.get("transformers.masking_utils")
        name = "find_packed_sequence_indices"
        if hasattr(masks, name):
            stack.enter_context(patch.object(masks, name, lambda positions: None))
        yield


class _Kernels(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if func is F.multi_head_attention_forward:  # which calls others, without the mode
            with patch.multiple(F, scaled_dot_product_attention=_attention, dropout=_dropout):
                return func(*args, **kwargs)
        if name in _IN_FLOAT32 and is_autocast_enabled("cpu"):
            args, kwargs = tensors.cast((args, kwargs), torch.float32)
            with torch.autocast("cpu", enabled=False):
                return func(*args, **kwargs)
        kernel = _KERNELS.get(func)
        if kernel is None or any(hasattr(each, "placements") for each in args):  # a DTensor
            return func(*args, **kwargs)
        return kernel(*args, **kwargs)


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True
) -> torch.Tensor:
    if not (training and train) or p == 0:
        return input
    dropped: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return dropped


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
    """As CUDA chooses: flash for short types without a mask, else the kernel that saves memory, if it can."""
    if is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    aten: Any = torch.ops.aten
    outputs: torch.Tensor
    has_heads = query.dim() == 4
    is_small = query.shape[-1] == value.shape[-1] <= 256
    if has_heads and is_small and query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None:
        flash = aten._scaled_dot_product_flash_attention
        outputs = flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return outputs
    is_plain = has_heads and key.shape[1] == query.shape[1] and query.dtype != torch.float64
    if not is_plain or _requires_grad(attn_mask):
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        plain = aten._scaled_dot_product_attention_math
        outputs = plain(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]
        return outputs
    if attn_mask is not None:
        bias = attn_mask if attn_mask.dtype != torch.bool else attn_mask.to(query.dtype)
        attn_mask = bias.expand(*query.shape[:-1], key.shape[-2])
    keeps = any(map(_requires_grad, (query, key, value)))
    efficient = aten._scaled_dot_product_efficient_attention
    outputs = efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]
    return outputs


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, **options: Any) -> torch.Tensor:
    """Each group of rows by its weight: as all rows by one weight, where the operator has no rule."""
    if rows.dtype == torch.bfloat16 or (rows.dim(), weights.dim()) != (2, 3):
        return _GROUPED_MM(rows, weights, **options)
    with torch.autocast("cpu", enabled=False):
        return rows @ weights[0]


_GROUPED_MM = torch._grouped_mm
_ATTENTION = F.scaled_dot_product_attention
_KERNELS: dict[Any, Any] = {
    _ATTENTION: _attention,
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.grouped_mm: _grouped_mm,
    _GROUPED_MM: _grouped_mm,
}


def _requires_grad(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def update_together(optimizer: torch.optim.Optimizer) -> None:
    """Let it choose as on an accelerator: all parameters together, unless it was told otherwise."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
