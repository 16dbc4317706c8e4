"""Modules: the first one in forward order whose output differs from the single device's.

A layout may share out rows inside a module, by expert say: where the output of a module around it is right,
a difference inside is by design, or has no effect, and what is surer is said before it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from dpexp import tensors
from dpexp.verification.compare import whole_error
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.found import Found
from dpexp.verification.diagnosis.gradients import BESIDE
from dpexp.verification.diagnosis.joined_calls import Key, Outputs, joined_call, local_calls
from dpexp.verification.failure import Failure
from dpexp.verification.recorder import Calls, widened
from dpexp.verification.sides import Sides


class FirstModule:
    """Every rank must make one and call ``find``."""

    def __init__(self, sides: Sides, failure: Failure) -> None:
        self.failure, self.group = failure, sides.group
        error = failure.worst.error
        self._limit = max(min(failure.worst.limit, error / 2), BESIDE * min(1.0, error))

    def find(self) -> Found:
        """The first module in forward order whose output differs."""
        rows, calls = self.group.rows(self.failure.batch.rows), self.failure.found.calls
        own = self.group.together(lambda: local_calls(calls) if rows.stop > rows.start else {})
        by_rank = self.group.all_gather(own)
        wrong, right = self._judged_modules(by_rank)
        if not wrong:
            return Found()
        sure = [number for number, name in wrong.items() if not _around(name) & right]
        key, found, wanted = next(islice(self._outputs(by_rank), (sure or [*wrong])[0], None))
        text = self._describe_module(key, by_rank, found, wanted)
        text += "" if sure else " (that of a module around it is right)"
        return Found(text, key[0], bool(sure))

    def _judged_modules(self, by_rank: Sequence[Calls]) -> tuple[dict[int, str], set[str]]:
        """The numbers and names of calls whose outputs differ, and the modules with none of these."""
        called, wrong = set[str](), dict[int, str]()
        for number, (key, found, wanted) in enumerate(self._outputs(by_rank)):
            called.add(key[0])
            if any(whole_error(*pair) > self._limit for pair in zip(found, wanted, strict=True)):
                wrong[number] = key[0]
        return wrong, called - set(wrong.values())

    def _outputs(self, by_rank: Sequence[Calls]) -> Iterator[tuple[Key, Outputs, Outputs]]:
        """The outputs of each call that both sides have made, in forward order: found and expected."""
        expected, counts = self.failure.expected, Counter[Key]()
        together = self.group.mesh.ranks_by_dp_rank
        for key in expected.modules:
            of_chunks = [calls for _, calls in sorted(expected.calls[key].items())]
            calls = min(map(len, of_chunks))
            if counts[key] >= calls:
                continue  # of another chunk
            chunks = [each[counts[key]] for each in of_chunks]
            wanted = chunks[0] if len(chunks) == 1 else tensors.concatenated(chunks)
            for found_key in self._levels(by_rank, key[0]):
                found = joined_call(by_rank, together, found_key, counts[key], calls, wanted)
                if found is not None:
                    yield found_key, found, wanted
            counts[key] += 1

    @staticmethod
    def _levels(by_rank: Sequence[Calls], name: str) -> list[Key]:
        """The module itself, then the wrappers around it, from the innermost on."""
        return sorted({key for calls in by_rank for key in calls if key[0] == name}, key=lambda key: -key[1])

    def _describe_module(self, key: Key, by_rank: Sequence[Calls], found: Outputs, wanted: Outputs) -> str:
        is_wrapper = key != self._levels(by_rank, key[0])[0]
        module = f"module '{key[0]}'" if key[0] else "the model itself"
        where = f"the wrapper around {module}, whose own output is right" if is_wrapper else module
        pairs = zip(found, wanted, strict=True)
        pair = next((f, w) for f, w in pairs if whole_error(f, w) > self._limit)
        text = patterns.of_rows(_wide(pair[0]), _wide(pair[1]), self.group.size)
        return f"the first output in forward order that differs is of {where}{text and f': {text}'}"


def _around(name: str) -> set[str]:
    """The modules around one: those of ``a.b`` are ``a`` and the model itself, which is ``""``."""
    keys = name.split(".") if name else []
    return {".".join(keys[:count]) for count in range(len(keys))}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    wide = widened(tensor)
    return wide if wide.is_floating_point() or wide.is_complex() else wide.double()
