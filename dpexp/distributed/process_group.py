"""ProcessGroup: how the processes of one run communicate outside of the model.

Here the group of one process: it returns its own values and waits for no other, so that callers need no
second code path. That of several ranks is in ``torch_process_group``.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed

from dpexp.config.mesh import Mesh
from dpexp.distributed.world import Member

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_T = TypeVar("_T")


class ProcessGroup:
    """The group of a run that is one process; ``members`` is empty.

    Along its ``mesh`` the ranks split the rows of a global batch into ``dp_size`` parts, of which this rank
    computes number ``dp_rank``.
    """

    rank = 0
    size = 1
    mesh = Mesh.of_rows(1)
    members: tuple[Member, ...] = ()
    is_first_on_host = True
    _second: SecondGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the Record."""
        return self.rank == 0

    @property
    def dp_size(self) -> int:
        """Into how many parts the ranks split the rows of a batch."""
        return self.mesh.dp_size

    @property
    def dp_rank(self) -> int:
        """Which of these parts this rank computes."""
        return self.mesh.dp_rank(self.rank)

    def device_mesh(self, device: torch.device) -> DeviceMesh | None:
        """The DeviceMesh of the ranks, with devices of this kind; None for one process.

        The first call makes it: every rank must call this.
        """
        return None

    def all_gather(self, value: Any) -> list[Any]:
        """The value of every rank, by rank, on every rank."""
        return [value]

    def one_of_each_dp_rank(self, by_rank: Sequence[_T]) -> list[_T]:
        """Of the values of all ranks those of the first of each ``dp_rank``, which have every row once."""
        return [by_rank[ranks[0]] for ranks in self.mesh.ranks_by_dp_rank]

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        """``all_gather`` as one tensor: every rank must give the same number of values."""
        return [values]

    def broadcast(self, rank: int, value: Any) -> Any:
        """The value of one rank, on every rank."""
        return value

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of all ranks by key; one that this rank lacks is that of the first rank that has it."""
        return values

    def barrier(self) -> None:
        """Wait until every rank calls this."""

    def check_agreement(self, error: BaseException | None, facts: dict[str, str]) -> None:
        """Raises the error of this rank; ConfigError where another rank has one, or where facts differ.

        Every rank raises then, and the group has ended.
        """
        if error is not None:
            raise error

    def all_failed(self, observing: str, text: str) -> bool:
        """Whether every rank has the error with this text in a step that is only observed, for ``observing``.

        Only then they continue. Call it once a run for each.
        """
        return True

    def root_cause(self, error: BaseException) -> BaseException:
        """What ended this rank: ``error``, or the error or end of a peer that caused it."""
        return error

    def second(self, timeout_s: float) -> SecondGroup:
        """A group of the same ranks for the collectives of a second thread: the first call makes it."""
        self._second = self._second or SecondGroup(timeout_s)
        return self._second

    def destroy(self) -> None:
        """End the group once every rank calls this. After an error a process ends without it."""

    def rows(self, count: int) -> slice:
        """The rows of a global batch of ``count`` that this rank computes, split as ``Tensor.chunk`` does."""
        size, part = max(1, -(-count // self.dp_size)), self.dp_rank
        return slice(min(count, part * size), min(count, (part + 1) * size))


class SecondGroup:
    """A second process group of all ranks, on gloo, for the collectives of a second thread::

        main thread      default group    collective 1 | collective 2 | ...
        second thread    second group     collective 1 | ...

    The ranks must begin the collectives of a group in one order. Of two threads that share a group each rank
    may have another order, and then all wait for ever; so each thread has its own group.

    ``open`` makes it when it is first needed, and again after ``abort``.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._group: Any = None

    def open(self) -> None:
        """Make the group if there is none; every rank calls this at the same point of its main thread."""
        if self._group is None:
            self._group = distributed.new_group(backend="gloo", timeout=self._timeout)

    @property
    def group(self) -> Any:
        """The open group. Raises RuntimeError after ``abort``."""
        if self._group is None:
            raise RuntimeError("the second process group has ended")
        return self._group

    def abort(self) -> None:
        """End it: what waits in it, on this rank and on others, raises RuntimeError at once.

        What begins in it later on this rank raises ValueError. A wait that times out makes gloo close the
        connections of its group.
        """
        group, self._group = self._group, None
        if group is None:
            return
        peer = (distributed.get_rank() + 1) % distributed.get_world_size()
        with suppress(RuntimeError):  # always: it timed out, or the connections were closed before
            receiving: Any = distributed.irecv(torch.empty(1), peer, group=group)
            receiving.wait(datetime.timedelta(milliseconds=1))
        distributed.destroy_process_group(group)

    def drop(self) -> None:
        """Forget it, before all groups are destroyed."""
        self._group = None
