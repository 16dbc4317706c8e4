"""Ranks: the processes of a watched loop, which compare what they observed in gloo groups of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from dpexp.config.errors import NotComparableError, describe
from dpexp.config.mesh import Mesh
from dpexp.distributed.group import ProcessGroup, RankError
from dpexp.verification.alone import everyone

_T = TypeVar("_T")

MEETING, ANSWER = timedelta(seconds=5), timedelta(seconds=60)
"""How long a rank waits for the others at the start of a step, and for each answer in it."""


class LostRankError(Exception):
    """Another rank has failed, or does not answer: no rank waits for this one any more."""


@dataclass(frozen=True)
class _Failed:
    """In the place of a value, of a rank that has failed on its own."""

    why: str


class LoopRanks(ProcessGroup):
    """All ranks of ``torch.distributed``, or this process. Every rank must make one and call its methods."""

    def __init__(self) -> None:
        is_joined = distributed.is_available() and distributed.is_initialized()
        size = distributed.get_world_size() if is_joined else 1
        answers = distributed.new_group(backend="gloo", timeout=ANSWER) if size > 1 else None
        self._meeting = distributed.new_group(backend="gloo", timeout=MEETING) if size > 1 else None
        super().__init__(Mesh.of_rows(size) if size > 1 else None, answers)

    def meet(self) -> None:
        """Wait for every rank to begin this step. Raises LostRankError where one does not."""
        if self._meeting is None:
            return
        try:
            distributed.barrier(self._meeting)
        except RuntimeError as error:
            raise LostRankError(
                f"rank {self.rank} takes a step of the optimizer that other ranks did not begin within "
                f"{MEETING.seconds} s: let every rank take the same steps"
            ) from error

    def all_gather(self, value: _T) -> list[_T]:
        """As of any group. Raises LostRankError where a rank ``fail``s, or does not answer."""
        try:
            values = super().all_gather(value)
        except RuntimeError as error:
            raise LostRankError(f"the ranks do not answer each other: {describe(error)}") from error
        for rank, each in enumerate(values):
            if isinstance(each, _Failed):
                raise LostRankError(f"rank {rank}: {each.why}")
        return values

    def fail(self, why: str) -> None:
        """End what all ranks do together, since this one cannot: the others wait for a value of it, or have
        failed alike.
        """
        with suppress(LostRankError):
            self.all_gather(_Failed(why))

    def together(self, part: Callable[[], _T]) -> _T:
        """As of any group; what a part of the user's model or loss raises is a NotComparableError."""
        try:
            return super().together(part)
        except RankError as failed:
            is_said = failed.kind == NotComparableError.__name__
            why = failed.text if is_said else f"a single device does not compute it: {failed.described}"
            raise NotComparableError(why) from failed.__cause__

    def add_up(self, tensor: torch.Tensor) -> None:
        """Add the tensors of all ranks in place, in float32 or wider; on their device, if a group has it.

        Inside of what this rank computes alone the groups of the loop are there again.
        """
        if self.size == 1:
            return
        with everyone():
            numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            group = self._of_device(numbers.device.type)
            wide = torch.promote_types(numbers.dtype, torch.float32)
            total = numbers.to(numbers.device if group is not None else "cpu", wide)
            distributed.all_reduce(total, group=group or self._group)
            if total is not numbers:
                numbers.copy_(total)

    def _of_device(self, kind: str) -> Any:
        """The group that adds up tensors of this kind of device; None if only the host can."""
        if kind == "cpu":
            return self._group
        world: Any = distributed.group.WORLD
        return world if kind in {each.type for each in world._device_types} else None
