"""A second process group of all ranks, for the collectives of a second thread.

    main thread      default group    collective 1 | collective 2 | ...
    second thread    second group     collective 1 | ...

The ranks must begin the collectives of a group in one order. Of two threads that share a group each rank may
have another order, and then all wait for ever; so each thread has its own group.
"""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

import torch
from torch import distributed


class SecondGroup:
    """On gloo. ``open`` makes it when it is first needed, and again after ``abort``."""

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
