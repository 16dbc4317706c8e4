"""ProcessGroup: how the processes of one run communicate outside of the model.

Here the group of one process: it returns its own values and waits for no other, so that callers need no
second code path. That of several ranks is in ``torch_process_group``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

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

    def destroy(self) -> None:
        """End the group once every rank calls this. After an error a process ends without it."""

    def rows(self, count: int) -> slice:
        """The rows of a global batch of ``count`` that this rank computes, split as ``Tensor.chunk`` does."""
        size, part = max(1, -(-count // self.dp_size)), self.dp_rank
        return slice(min(count, part * size), min(count, (part + 1) * size))
