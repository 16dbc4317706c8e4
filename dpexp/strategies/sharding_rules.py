"""Sharding rules: how DTensors pass through operators for which PyTorch has no rule, and what else helps.

attention on a CPU, of DTensors (batch, heads, tokens, width)
  each rank computes its rows of the batch, or its heads        Shard(0), Shard(1)
  each rank computes everything                                 Replicate()
"""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dpexp.strategies.modules.wrappers import parts

NOTE = "attention of DTensors on a CPU has no sharding rule in PyTorch: dpexp has registered one"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_MISSING = re.compile(r"[Oo]perator (\S+) does not have a sharding strategy")
_MIXED = re.compile(r"(\S+)[: ]+got mixed torch.Tensor and DTensor")
_used: set[str] = set()


def register_attention(module: nn.Module) -> None:
    """Give PyTorch the rule of attention on a CPU where a layout has DTensors there, and none is known."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    if not any(mesh is not None and mesh.device_type == "cpu" for mesh in meshes):
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    known = [table for table in vars(propagator).values() if isinstance(table, Mapping)]
    for suffix, rule in (("", _forward), ("_backward", _backward)):
        operator = getattr(torch.ops.aten, f"{_ATTENTION}{suffix}").default
        if not any(operator in table for table in known):
            register_sharding(operator)(rule)


def notes() -> list[str]:
    """Which rules of dpexp's DTensors have used in this process."""
    return sorted(_used)


def _forward(
    q: Any, k: Any, v: Any, *options: Any, attn_mask: Any = None, **others: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Placements of the outputs and logarithms of sums, and those of the inputs."""
    of_mask, chosen = _placements(q, k, attn_mask)
    return [([p, p], [p, p, p, None, None, of_mask, None]) for p in chosen]


def _backward(
    gradient: Any, q: Any, k: Any, *saved: Any, attn_mask: Any = None, **others: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Placements of the gradients, and those of the inputs."""
    of_mask, chosen = _placements(q, k, attn_mask)
    return [([p, p, p], [p] * 6 + [None, None, of_mask, None]) for p in chosen]


def _placements(q: Any, k: Any, mask: Any) -> tuple[Any, list[Any]]:
    """That of the mask, and those that queries, keys and values may have.

    PyTorch does not redistribute a mask, so it is replicated. Fewer keys than queries have heads in groups.
    """
    from torch.distributed.tensor import Replicate, Shard

    _used.add(NOTE)
    if mask is not None and not all(placement.is_replicate() for placement in mask.placements):
        raise NotImplementedError("a mask of attention on DTensors must be replicated over their mesh")
    ranks = q.mesh.size()
    has_whole_groups = q.shape[1] == k.shape[1] or not (q.shape[1] % ranks or k.shape[1] % ranks)
    dims = (0, 1) if has_whole_groups else (0,)
    is_same = {dim: mask is None or mask.ndim < 4 or mask.shape[dim] == 1 for dim in dims}
    return None if mask is None else Replicate(), [Replicate(), *(Shard(dim) for dim in dims if is_same[dim])]


def explained(error: Exception, module: nn.Module) -> NotImplementedError | None:
    """The error of an operator that DTensors cannot pass, with its module and what one can do; else None."""
    text = str(error)
    if operator := _MISSING.search(text):
        why = f"PyTorch has no sharding rule for {operator[1]}"
    elif operator := _MIXED.search(text):
        why = f"{operator[1]} gets a DTensor beside a plain tensor"
    else:
        return None
    return NotImplementedError(
        f"{_where(module, error.__traceback__)}: {why}. Give the module plain tensors (use_local_output=True "
        "of what comes before it, or to_local() before the operator and DTensor.from_local() after it), make "
        "the other tensor a DTensor, or register a rule with "
        "torch.distributed.tensor.experimental.register_sharding"
    )


def _where(module: nn.Module, traceback: TracebackType | None) -> str:
    """The innermost module of the model in which the error was raised."""
    names = {id(part.module): part.name for part in parts(module)}
    found = None
    while traceback is not None:
        found = names.get(id(traceback.tb_frame.f_locals.get("self")), found)
        traceback = traceback.tb_next
    return "the backward" if found is None else f"module '{found}'" if found else "the model itself"
