"""Modules: the first one in forward order whose output differs from the single device's.

A layout may share out rows inside a module, by expert say: where the output of a module around it is right,
a difference inside is by design, or has no effect, and what is surer is said before it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import torch

from dpexp import tensors
from dpexp.strategies.placed import full_output
from dpexp.verification.compare import distance, whole_error
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.gradients import BESIDE
from dpexp.verification.diagnosis.patterns import Found
from dpexp.verification.recorder import Calls, Step, widened
from dpexp.verification.sides import Sides
from dpexp.verification.trial import Failure

Key: TypeAlias = tuple[str, int]
"""A module's name, and the number of wrappers around it."""
Outputs: TypeAlias = Sequence[torch.Tensor]


class _Output(NamedTuple):
    """The outputs of a call that both sides have made: of a module, or of a wrapper around it."""

    name: str
    is_wrapper: bool
    found: Outputs
    expected: Outputs

    def differing(self, limit: float) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The first found and expected tensor that are further apart."""
        pairs = zip(self.found, self.expected, strict=True)
        return next((pair for pair in pairs if whole_error(*pair) > limit), None)


def first_module(sides: Sides, failure: Failure) -> Found:
    """The first module in forward order whose output differs; every rank must call this.

    Raises RankError.
    """
    group, calls = sides.group, failure.found.calls
    rows, error = group.rows(failure.batch.rows), failure.worst.error
    by_rank = group.all_gather(group.together(lambda: _local_calls(calls) if rows.stop > rows.start else {}))
    limit = max(min(failure.worst.limit, error / 2), BESIDE * min(1.0, error))
    outputs = partial(_outputs, failure.expected, by_rank, group.mesh.ranks_by_dp_rank)
    names = [(output.name, output.differing(limit) is not None) for output in outputs()]
    wrong = [number for number, (_, differs) in enumerate(names) if differs]
    if not wrong:
        return Found()
    right = {name for name, _ in names} - {names[number][0] for number in wrong}
    sure = [number for number in wrong if not _around(names[number][0]) & right]
    first = next(islice(outputs(), (sure or wrong)[0], None))  # again: all together may not fit in memory
    text = _described(first, limit, group.size)
    return Found(text if sure else f"{text} (that of a module around it is right)", first.name, bool(sure))


def _outputs(
    expected: Step, by_rank: Sequence[Calls], ranks_by_dp_rank: Sequence[Sequence[int]]
) -> Iterator[_Output]:
    """Those of each call that both sides have made, in forward order; wrappers from the innermost on."""
    counts = Counter[Key]()
    for key in expected.modules:
        of_chunks = [calls for _, calls in sorted(expected.calls[key].items())]
        calls = min(map(len, of_chunks))
        if counts[key] >= calls:
            continue  # of another chunk
        chunks = [each[counts[key]] for each in of_chunks]
        wanted = chunks[0] if len(chunks) == 1 else tensors.concatenated(chunks)
        same_name = {made for of_rank in by_rank for made in of_rank if made[0] == key[0]}
        for number, made in enumerate(sorted(same_name, key=lambda made: -made[1])):
            found = _joined_call(by_rank, ranks_by_dp_rank, made, counts[key], calls, wanted)
            if found is not None:
                yield _Output(key[0], number > 0, found, wanted)
        counts[key] += 1


def _described(output: _Output, limit: float, ranks: int) -> str:
    module = f"module '{output.name}'" if output.name else "the model itself"
    where = f"the wrapper around {module}, whose own output is right" if output.is_wrapper else module
    pair = output.differing(limit)
    assert pair is not None
    pattern = patterns.of_rows(_wide(pair[0]), _wide(pair[1]), ranks)
    return f"the first output in forward order that differs is of {where}{pattern and f': {pattern}'}"


def _around(name: str) -> set[str]:
    """The modules around one: those of ``a.b`` are ``a`` and the model itself, which is ``""``."""
    keys = name.split(".") if name else []
    return {".".join(keys[:count]) for count in range(len(keys))}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    wide = widened(tensor)
    return wide if wide.is_floating_point() or wide.is_complex() else wide.double()


# --- the outputs of all replicas and ranks, as a single device has them ---


def _local_calls(calls: Calls) -> Calls:
    """The calls of this rank with plain tensors, its own parts of DTensors; terms of a sum are left out."""
    return {
        key: {replica: [_local(outputs) for outputs in of] for replica, of in replicas.items()}
        for key, replicas in calls.items()
    }


def _local(outputs: Sequence[Any]) -> list[torch.Tensor]:
    if any(each.is_partial() for tensor in outputs for each in getattr(tensor, "placements", ())):
        return []
    return [full_output(each.to_local() if hasattr(each, "placements") else each) for each in outputs]


def _joined_call(
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
