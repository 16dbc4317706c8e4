"""Ranks: how the processes of a watched loop compare what they saw, in a gloo group of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from dpexp.config.errors import NotComparableError, describe
from dpexp.config.mesh import Mesh
from dpexp.distributed.group import ProcessGroup
from dpexp.watch.findings import FoundError

_T = TypeVar("_T")

MEETING, ANSWER = timedelta(seconds=5), timedelta(seconds=60)
"""How long a rank waits for the others at the start of a step, and for each answer in it."""


class Ranks:
    """All ranks of ``torch.distributed``, or this process. Every rank must make one and call its methods."""

    def __init__(self) -> None:
        self._gloo: Any = None
        mesh = None
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            self._gloo = distributed.new_group(backend="gloo", timeout=ANSWER)
            self._meeting = distributed.new_group(backend="gloo", timeout=MEETING)
            mesh = Mesh.of_rows(distributed.get_world_size())
        self.group = ProcessGroup(mesh, self._gloo)
        self.rank, self.size = self.group.rank, self.group.size

    def meet(self) -> None:
        """Wait for every rank to begin this step. Raises NotComparableError where one does not."""
        if self._gloo is None:
            return
        try:
            distributed.barrier(self._meeting)
        except RuntimeError as error:
            raise NotComparableError(
                f"rank {self.rank} takes a step of the optimizer that other ranks did not begin within "
                f"{MEETING.seconds} s: let every rank take the same steps"
            ) from error

    def all_gather(self, value: _T) -> list[_T]:
        """The value of every rank, by rank, on every rank."""
        return self.group.all_gather(value)

    def together(self, act: Callable[[], _T]) -> _T:
        """What this rank computes by itself. What raises on one rank raises on all, so that none waits."""
        found, why = None, ""
        error: Exception | None = None
        try:
            found = act()
        except FoundError:
            raise
        except NotComparableError as raised:
            error, why = raised, str(raised)
        except Exception as raised:  # of the user's model or loss
            error, why = raised, f"a single device does not compute it: {describe(raised)}"
        why = next(filter(None, self.all_gather(why)), "")
        if why:
            raise NotComparableError(why) from error
        return found  # type: ignore[return-value]

    def sum(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sums over all ranks, on the devices of the values, by name."""
        if self._gloo is None:
            return dict(values)
        totals = {}
        for name, each in values.items():
            wide = torch.float64 if each.dtype == torch.float64 else torch.float32
            total = each.detach().to("cpu", each.dtype.to_complex() if each.is_complex() else wide, copy=True)
            distributed.all_reduce(total, group=self._gloo)
            totals[name] = total.to(each)
        return totals
