"""Joined calls: the outputs of one module call in all replicas and ranks, as a single device has them."""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import torch

from dpexp.verification.compare import distance
from dpexp.verification.recorder import Calls

Key: TypeAlias = tuple[str, int]
"""A module's name, and the number of wrappers around it."""


def joined_call(
    by_rank: Sequence[Calls],
    ranks_by_dp_rank: Sequence[Sequence[int]],
    key: Key,
    call: int,
    calls: int,
    wanted: Sequence[torch.Tensor],
    rows: Sequence[int],
) -> list[torch.Tensor] | None:
    """The outputs of a call, of all replicas and ranks together; None where they cannot be joined.

    ``rows`` are those of the batch, by ``dp_rank``.
    """
    parts: list[list[Sequence[torch.Tensor]]] = []  # of the rows; of each the outputs of its ranks
    for ranks in ranks_by_dp_rank:
        made = [each for rank in ranks for _, each in sorted(by_rank[rank].get(key, {}).items())]
        if calls == 1:
            made = [_one_call(each) for each in made]
        if any(len(each) != calls or len(each[call]) != len(wanted) for each in made):
            return None
        pieces: list[Sequence[torch.Tensor]] = [each[call] for each in made]
        parts.extend([pieces] if len(ranks) > 1 else [[piece] for piece in pieces])
    everywhere = [[piece[index] for pieces in parts for piece in pieces] for index in range(len(wanted))]
    is_split = partial(_is_split, () if any(len(pieces) > 1 for pieces in parts) else rows)
    if any(map(is_split, everywhere, wanted)):
        return [_of_split(is_split(*pair), *pair) for pair in zip(everywhere, wanted, strict=True)]
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


def _is_split(rows: Sequence[int], pieces: Sequence[torch.Tensor], expected: torch.Tensor) -> bool:
    """Whether ranks share out the rows otherwise than a batch: by expert, say.

    ``rows`` of a batch has each of them, unless ranks share these.
    """
    if len(pieces) < 2 or any(piece.dim() != expected.dim() or not piece.dim() for piece in pieces):
        return False
    shapes = {tuple(piece.shape[1:]) for piece in pieces} | {tuple(expected.shape[1:])}
    if len(shapes) > 1 or sum(map(len, pieces)) != len(expected):
        return False
    if rows and len(rows) != len(pieces):
        return False
    shares = zip(pieces, rows, strict=False)
    return not rows or any(len(piece) * sum(rows) != share * len(expected) for piece, share in shares)


def _of_split(is_split: bool, pieces: Sequence[torch.Tensor], expected: torch.Tensor) -> torch.Tensor:
    """What ranks that share out the rows have together.

    They may have the rows in an order of their own: the same numbers are enough. A count of rows is a sum.
    """
    if is_split:
        found, wanted = torch.cat([piece.to("cpu") for piece in pieces]), expected.to("cpu")
        if found.is_complex() or distance(found, wanted) == 0:
            return found
        arranged = torch.empty_like(wanted, dtype=found.dtype).flatten()
        return arranged.index_copy_(0, wanted.flatten().argsort(), found.flatten().sort().values).view_as(
            wanted
        )
    candidates = [_of_rows(pieces, expected)]
    if all(piece.shape == expected.shape for piece in pieces):
        candidates.append(torch.stack([piece.to("cpu") for piece in pieces]).sum(0).to(expected.dtype))
    return min(candidates, key=lambda found: distance(found, expected))


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
