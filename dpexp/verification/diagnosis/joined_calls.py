"""Joined calls: the outputs of one module call in all replicas and ranks, as a single device has them."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from dpexp.strategies.placed import full_output
from dpexp.verification.compare import distance
from dpexp.verification.recorder import Calls

Key: TypeAlias = tuple[str, int]
"""A module's name, and the number of wrappers around it."""
Outputs: TypeAlias = Sequence[torch.Tensor]


def local_calls(calls: Calls) -> Calls:
    """The calls of this rank with plain tensors, its own parts of DTensors; terms of a sum are left out."""
    return {
        key: {replica: [_local(outputs) for outputs in of] for replica, of in replicas.items()}
        for key, replicas in calls.items()
    }


def _local(outputs: Sequence[Any]) -> list[torch.Tensor]:
    if any(each.is_partial() for tensor in outputs for each in getattr(tensor, "placements", ())):
        return []
    return [full_output(each.to_local() if hasattr(each, "placements") else each) for each in outputs]


def joined_call(
    by_rank: Sequence[Calls],
    ranks_by_dp_rank: Sequence[Sequence[int]],
    key: Key,
    call: int,
    calls: int,
    wanted: Outputs,
) -> list[torch.Tensor] | None:
    """The outputs ``(rows, …)`` of a call in all replicas and ranks; None where they cannot be joined."""
    parts: list[list[Outputs]] = []  # of the rows; of each the outputs of its ranks
    for ranks in ranks_by_dp_rank:
        made = [each for rank in ranks for _, each in sorted(by_rank[rank].get(key, {}).items())]
        if calls == 1:
            rows = math.ceil(_rows(wanted[0]) / len(ranks_by_dp_rank)) if wanted else 0
            made = [_one_call(each, rows) for each in made]
        if any(len(each) != calls or len(each[call]) != len(wanted) for each in made):
            return None
        if 0 < len(made) < len(ranks) and made[0][call][0].shape != wanted[0].shape:
            return None  # a part, without those of the other ranks
        pieces: list[Outputs] = [each[call] for each in made]
        parts += [pieces] if len(ranks) > 1 else [[piece] for piece in pieces]
    together = [
        _cat([[piece[index] for piece in pieces] for pieces in parts if pieces], expected)
        for index, expected in enumerate(wanted)
    ]
    complete = [tensor for tensor in together if tensor is not None]
    return complete if complete and len(complete) == len(wanted) else None


def _one_call(calls: list[list[torch.Tensor]], rows: int) -> list[list[torch.Tensor]]:
    """The outputs of a call for each micro-batch as those of one call, where they have the same layout.

    Where the first has all rows of a rank, it was made again.
    """
    shapes = {tuple(tensor.shape[1:] for tensor in outputs) for outputs in calls}
    if len(calls) < 2 or len(shapes) > 1 or any(not tensor.dim() for outputs in calls for tensor in outputs):
        return calls
    if calls[0] and _rows(calls[0][0]) == rows:
        return calls[:1]
    return [[torch.cat(micro_batches) for micro_batches in zip(*calls, strict=True)]]


def _cat(parts: Sequence[Outputs], expected: torch.Tensor) -> torch.Tensor | None:
    """The rows of all parts; None where ranks have shares of them, or scalars of shards."""
    shared = [piece for pieces in parts for piece in pieces if len(pieces) > 1]
    if len(shared) > 1 and expected.dim() and sum(map(_rows, shared)) == len(expected):
        return None
    pieces = [_of_ranks(each, expected) for each in parts]
    if len(pieces) == 1:
        return None if expected.dim() == 0 < pieces[0].dim() else pieces[0]
    if not pieces or not expected.dim() or any(each.shape[1:] != expected.shape[1:] for each in pieces):
        return None
    together = torch.cat([piece.cpu() for piece in pieces])
    return together if together.shape == expected.shape else None


def _rows(tensor: torch.Tensor) -> int:
    return len(tensor) if tensor.dim() else 0


def _of_ranks(pieces: Outputs, expected: torch.Tensor) -> torch.Tensor:
    """The output of ranks that share rows: what they have side by side, or else what is furthest off."""
    if len(pieces) > 1 and pieces[0].dim() == expected.dim():
        for dim in range(1, expected.dim()):
            if sum(piece.shape[dim] for piece in pieces) == expected.shape[dim]:
                return torch.cat([piece.cpu() for piece in pieces], dim)
    return max(pieces, key=lambda piece: distance(piece, expected))
