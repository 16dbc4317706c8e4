"""Ranks: the processes of a watched loop, which compare what they observed in gloo groups of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from dpexp.config.errors import NotComparableError
from dpexp.config.mesh import Mesh
from dpexp.distributed.group import ProcessGroup, RankError

_T = TypeVar("_T")

MEETING, ANSWER = timedelta(seconds=5), timedelta(seconds=60)
"""How long a rank waits for the others at the start of a step, and for each answer in it."""


class LoopRanks(ProcessGroup):
    """All ranks of ``torch.distributed``, or this process. Every rank must make one and call its methods."""

    def __init__(self) -> None:
        is_joined = distributed.is_available() and distributed.is_initialized()
        size = distributed.get_world_size() if is_joined else 1
        answers = distributed.new_group(backend="gloo", timeout=ANSWER) if size > 1 else None
        self._meeting = distributed.new_group(backend="gloo", timeout=MEETING) if size > 1 else None
        super().__init__(Mesh.of_rows(size) if size > 1 else None, answers)

    def meet(self) -> None:
        """Wait for every rank to begin this step. Raises NotComparableError where one does not."""
        if self._meeting is None:
            return
        try:
            distributed.barrier(self._meeting)
        except RuntimeError as error:
            raise NotComparableError(
                f"rank {self.rank} takes a step of the optimizer that other ranks did not begin within "
                f"{MEETING.seconds} s: let every rank take the same steps"
            ) from error

    def together(self, part: Callable[[], _T]) -> _T:
        """As of any group; what a part of the user's model or loss raises is a NotComparableError."""
        try:
            return super().together(part)
        except RankError as failed:
            is_said = failed.kind == NotComparableError.__name__
            why = failed.text if is_said else f"a single device does not compute it: {failed.described}"
            raise NotComparableError(why) from failed.__cause__

    def sum(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sums over all ranks, on the devices of the values, by name."""
        if self.size == 1:
            return dict(values)
        totals = {}
        for name, each in values.items():
            wide = torch.float64 if each.dtype == torch.float64 else torch.float32
            total = each.detach().to("cpu", each.dtype.to_complex() if each.is_complex() else wide, copy=True)
            distributed.all_reduce(total, group=self._group)
            totals[name] = total.to(each)
        return totals
