"""Joined calls: the outputs of one module call in all replicas and ranks, as a single device has them."""

from collections.abc import Sequence
from typing import TypeAlias

import torch

from dpexp.verification.limits.compare import distance
from dpexp.verification.steps.recorder import Calls

Key: TypeAlias = tuple[str, int]
"""A module's name, and the number of wrappers around it."""


def joined_call(
    by_rank: Sequence[Calls],
    ranks_by_dp_rank: Sequence[Sequence[int]],
    key: Key,
    call: int,
    calls: int,
    wanted: Sequence[torch.Tensor],
) -> list[torch.Tensor] | None:
    """The outputs of a call, of all replicas and ranks together; None where they cannot be joined."""
    parts: list[list[Sequence[torch.Tensor]]] = []  # of the rows; of each the outputs of its ranks
    for ranks in ranks_by_dp_rank:
        made = [each for rank in ranks for _, each in sorted(by_rank[rank].get(key, {}).items())]
        if calls == 1:
            made = [_one_call(each) for each in made]
        if any(len(each) != calls or len(each[call]) != len(wanted) for each in made):
            return None
        pieces: list[Sequence[torch.Tensor]] = [each[call] for each in made]
        parts.extend([pieces] if len(ranks) > 1 else [[piece] for piece in pieces])
    together = [
        _cat([_of_rows([piece[index] for piece in pieces], expected) for pieces in parts if pieces], expected)
        for index, expected in enumerate(wanted)
    ]
    complete = [tensor for tensor in together if tensor is not None]
    return complete if complete and len(complete) == len(wanted) else None


def joined_chunks(chunks: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The outputs of a single device that computed the rows in chunks, as if it had computed them at once."""
    pieces = zip(*chunks, strict=True)
    return (
        [torch.cat(each) if each[0].dim() else torch.stack(each) for each in pieces]
        if len(chunks) > 1
        else [*chunks[0]]
    )


def _one_call(calls: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """The outputs of a call for each micro-batch as those of one call, where they have the same layout."""
    shapes = {tuple(tensor.shape[1:] for tensor in outputs) for outputs in calls}
    if len(calls) < 2 or len(shapes) > 1 or any(not tensor.dim() for outputs in calls for tensor in outputs):
        return calls
    return [[torch.cat(micro_batches) for micro_batches in zip(*calls, strict=True)]]


def _cat(pieces: Sequence[torch.Tensor], expected: torch.Tensor) -> torch.Tensor | None:
    """The pieces along the dimension that gives the expected shape; None if there is none."""
    if len(pieces) == 1:  # a vector of the scalars of shards cannot be compared here
        return None if expected.dim() == 0 < pieces[0].dim() else pieces[0]
    if not pieces or any(piece.dim() != expected.dim() for piece in pieces):
        return None
    for dim in range(expected.dim()):
        others = [_without(tuple(piece.shape), dim) for piece in pieces]
        is_complete = sum(piece.shape[dim] for piece in pieces) == expected.shape[dim]
        if is_complete and all(other == _without(tuple(expected.shape), dim) for other in others):
            return torch.cat([piece.to("cpu") for piece in pieces], dim)
    return None


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]


def _of_rows(pieces: Sequence[torch.Tensor], expected: torch.Tensor) -> torch.Tensor:
    """The output for one part of the rows, of ranks that have shards side by side, or all of it each.

    Of the latter it is the one that is furthest from what is expected.
    """
    first = pieces[0]
    for dim in range(1, first.dim() if first.dim() == expected.dim() and len(pieces) > 1 else 0):
        if sum(piece.shape[dim] for piece in pieces) == expected.shape[dim]:
            return torch.cat([piece.to("cpu") for piece in pieces], dim)
    if any(piece.shape != expected.shape for piece in pieces):
        return first
    return max(pieces, key=lambda piece: distance(piece, expected))
