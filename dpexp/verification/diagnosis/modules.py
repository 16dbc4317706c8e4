"""Modules: the first one in forward order whose output differs from the single device's.

A layout may share out rows inside a module, by expert say: where the output of a module around it is right,
a difference inside is by design, or has no effect, and what is surer is said before it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch

from dpexp import tensors
from dpexp.verification.compare import whole_error
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.found import Found
from dpexp.verification.diagnosis.gradients import BESIDE
from dpexp.verification.diagnosis.joined_calls import Key, Outputs, joined_call, local_calls
from dpexp.verification.recorder import Calls, Step, widened
from dpexp.verification.sides import Sides
from dpexp.verification.trial import Failure


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
    by_rank = group.all_gather(group.together(lambda: local_calls(calls) if rows.stop > rows.start else {}))
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
            found = joined_call(by_rank, ranks_by_dp_rank, made, counts[key], calls, wanted)
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
