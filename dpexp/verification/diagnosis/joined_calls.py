"""Joined calls: the outputs of one module call in all replicas and ranks, as a single device has them."""

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


def joined_chunks(chunks: Sequence[Outputs]) -> list[torch.Tensor]:
    """The outputs of a single device that computed the rows in chunks, as if it had computed them at once."""
    if len(chunks) == 1:
        return [*chunks[0]]
    return [torch.cat(each) if each[0].dim() else torch.stack(each) for each in zip(*chunks, strict=True)]


def joined_call(
    by_rank: Sequence[Calls],
    ranks_by_dp_rank: Sequence[Sequence[int]],
    key: Key,
    call: int,
    calls: int,
    wanted: Outputs,
    rows: Sequence[int],
) -> list[torch.Tensor] | None:
    """The outputs of a call, of all replicas and ranks together; None where they cannot be joined.

    ``rows`` are those of the batch, by ``dp_rank``.
    """
    parts: list[list[Outputs]] = []  # of the rows; of each the outputs of its ranks
    for ranks in ranks_by_dp_rank:
        made = [each for rank in ranks for _, each in sorted(by_rank[rank].get(key, {}).items())]
        if calls == 1:
            made = [_one_call(each) for each in made]
        if any(len(each) != calls or len(each[call]) != len(wanted) for each in made):
            return None
        if 0 < len(made) < len(ranks) and made[0][call][0].shape != wanted[0].shape:
            return None  # a part, without those of the other ranks
        pieces: list[Outputs] = [each[call] for each in made]
        parts.extend([pieces] if len(ranks) > 1 else [[piece] for piece in pieces])
    share = any(len(pieces) > 1 for pieces in parts)
    everywhere = [[piece[index] for pieces in parts for piece in pieces] for index in range(len(wanted))]
    if any(_are_split(() if share else rows, *pair) for pair in zip(everywhere, wanted, strict=True)):
        return None
    together = [
        _cat([_of_rows([piece[index] for piece in pieces], expected) for pieces in parts if pieces], expected)
        for index, expected in enumerate(wanted)
    ]
    complete = [tensor for tensor in together if tensor is not None]
    return complete if complete and len(complete) == len(wanted) else None


def _one_call(calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """The outputs of a call for each micro-batch as those of one call, where they have the same layout."""
    shapes = {tuple(tensor.shape[1:] for tensor in outputs) for outputs in calls}
    if len(calls) < 2 or len(shapes) > 1 or any(not tensor.dim() for outputs in calls for tensor in outputs):
        return calls
    return [[torch.cat(micro_batches) for micro_batches in zip(*calls, strict=True)]]


def _cat(pieces: Outputs, expected: torch.Tensor) -> torch.Tensor | None:
    """The pieces along the dimension that gives the expected shape; None if there is none."""
    if len(pieces) == 1:  # a vector of the scalars of shards cannot be compared here
        return None if expected.dim() == 0 < pieces[0].dim() else pieces[0]
    dims = [dim for dim in range(expected.dim()) if pieces and _fit(pieces, expected, dim)]
    return torch.cat([piece.cpu() for piece in pieces], dims[0]) if dims else None


def _fit(pieces: Outputs, expected: torch.Tensor, dim: int) -> bool:
    """Whether the pieces, side by side along a dimension, have the expected shape."""
    shapes, wanted = [list(piece.shape) for piece in pieces], list(expected.shape)
    if any(len(shape) != len(wanted) for shape in shapes):
        return False
    sizes, size = [shape.pop(dim) for shape in shapes], wanted.pop(dim)
    return sum(sizes) == size and all(shape == wanted for shape in shapes)


def _are_split(rows: Sequence[int], pieces: Outputs, expected: torch.Tensor) -> bool:
    """Whether ranks share out the rows otherwise than a batch: by expert, say.

    ``rows`` of a batch has each of them, unless ranks share these.
    """
    if len(pieces) < 2 or not expected.dim() or not _fit(pieces, expected, 0):
        return False
    shares = zip(pieces, rows, strict=False)
    is_otherwise = any(len(piece) * sum(rows) != share * len(expected) for piece, share in shares)
    return not rows or (len(rows) == len(pieces) and is_otherwise)


def _of_rows(pieces: Outputs, expected: torch.Tensor) -> torch.Tensor:
    """The output for one part of the rows, of ranks that have shards side by side, or all of it each.

    Of the latter it is the one that is furthest from what is expected.
    """
    if len(pieces) > 1 and pieces[0].dim() == expected.dim():
        for dim in range(1, expected.dim()):
            if sum(piece.shape[dim] for piece in pieces) == expected.shape[dim]:
                return torch.cat([piece.cpu() for piece in pieces], dim)
    if any(piece.shape != expected.shape for piece in pieces):
        return pieces[0]
    return max(pieces, key=lambda piece: distance(piece, expected))
