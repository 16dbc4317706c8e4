"""ProcessGroup: how the processes of one run communicate outside of the model.

A run that is one process has a group too: it returns its own values and waits for no other, so that callers
need no second code path.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed.nn.functional  # before a group exists: its functions would keep the default group
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dpexp.config.errors import ConfigError, Terminated, describe, text_of
from dpexp.config.mesh import Mesh
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.faults import Faults, LostContact
from dpexp.distributed.world import Member, World

_T = TypeVar("_T")


@dataclass(eq=False)
class RankError(Exception):
    """A part that every rank runs has raised; every rank raises this, of the first of ``ranks`` that has.

    ``kind`` and ``text`` are those of the error, and ``described`` is both in one line, with the line of user
    code. Its ``__cause__`` is what this rank itself has raised, if it has.
    """

    rank: int
    ranks: int
    kind: str
    text: str
    described: str

    def __str__(self) -> str:
        return f"rank {self.rank} raised {self.described}" if self.ranks > 1 else self.described


class ProcessGroup:
    """All ranks of ``torch.distributed``, laid out along a mesh; without a mesh this process, no members.

    Along its ``mesh`` the ranks split the rows of a global batch into ``dp_size`` parts, of which this rank
    computes number ``dp_rank``. Values are exchanged in ``group``, on gloo; without one in the default group.
    ``is_absent``: the other ranks are not there.
    """

    is_absent = False

    def __init__(self, mesh: Mesh | None = None, group: Any = None) -> None:
        self.rank, self.size, self.mesh = 0, 1, mesh or Mesh.of_rows(1)
        self.members: tuple[Member, ...] = ()
        self._group = group
        self._device_mesh: DeviceMesh | None = None
        self._faults: Faults | None = None
        if mesh is not None:
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            processes = self.all_gather((platform.node(), os.getpid()))
            self.members = tuple(Member(rank, *process) for rank, process in enumerate(processes))

    def watch(self, store: Any, timeout_s: float) -> None:
        """Report to the other ranks, in the group's store, what ends this one, and read their reports."""
        self._faults = Faults(store, self.rank, self.members, timeout_s)

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

    def rows(self, count: int) -> slice:
        """The rows of a global batch of ``count`` that this rank computes, split as ``Tensor.chunk`` does."""
        own = split(count, self.dp_size)[self.dp_rank]
        return slice(own.start, own.stop)

    def device_mesh(self, device: torch.device) -> DeviceMesh | None:
        """The DeviceMesh of the ranks, with devices of this kind; None for one process.

        The first call makes it: every rank must call this.
        """
        if self.members and self._device_mesh is None:
            sizes = tuple(dimension.size for dimension in self.mesh.dimensions)
            names = tuple(dimension.name for dimension in self.mesh.dimensions)
            self._device_mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
        return self._device_mesh

    def all_gather(self, value: _T) -> list[_T]:
        """The value of every rank, by rank, on every rank."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value, group=self._group)
        return values

    def one_of_each_dp_rank(self, by_rank: Sequence[_T]) -> list[_T]:
        """Of the values of all ranks those of the first of each ``dp_rank``, which have every row once."""
        return [by_rank[ranks[0]] for ranks in self.mesh.ranks_by_dp_rank]

    def broadcast(self, rank: int, value: Any) -> Any:
        """The value of one rank, on every rank."""
        values = [value if self.rank == rank else None]
        if self.size > 1:
            distributed.broadcast_object_list(values, src=rank, group=self._group)
        return values[0]

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of all ranks by key; one that this rank lacks is that of the first rank that has it."""
        keys: list[list[str]] = self.all_gather(list(values))
        completed = dict.fromkeys(key for of_rank in keys for key in of_rank) | values
        for key in completed:
            if not all(key in of_rank for of_rank in keys):
                owner = next(rank for rank, of_rank in enumerate(keys) if key in of_rank)
                sent = self.broadcast(owner, values.get(key))
                completed[key] = values.get(key, sent)
        return completed

    def barrier(self) -> None:
        """Wait until every rank calls this."""
        if self.size > 1:
            distributed.barrier(group=self._group)

    def together(self, part: Callable[[], _T]) -> _T:
        """What this rank's part returns; every rank must call this. Raises RankError on all where one raises.

        So no rank waits for one that has raised. A signal ends this rank as it does anywhere.
        """
        error: BaseException | None = None
        try:
            value = part()
        except (KeyboardInterrupt, Terminated):
            raise
        except BaseException as raised:  # of any kind: of a user's code
            error = raised
        own = (type(error).__name__, text_of(error), describe(error)) if error is not None else None
        for rank, of_rank in enumerate(self.all_gather(own)):
            if of_rank is not None:
                raise RankError(rank, self.size, *of_rank) from error
        return value

    def check_alike(self, facts: dict[str, str]) -> None:
        """Raises ConfigError on every rank where facts differ between ranks; every rank must call this."""
        by_rank = self.all_gather(facts)
        for member, of_rank in zip(self.members, by_rank, strict=False):
            for name, value in of_rank.items():
                if value != by_rank[0][name]:
                    raise ConfigError(
                        f"the ranks differ in their {name}: {member} and {self.members[0]}. Give every rank "
                        "the same command, code and data"
                    )

    def all_failed(self, observing: str, text: str) -> bool:
        """Whether every rank has the error with this text in a step that is only observed, for ``observing``.

        Only then they continue. Call it once per run for each.
        """
        return self._faults.all_failed(observing, text) if self._faults is not None else self.size == 1

    def root_cause(self, error: BaseException) -> BaseException:
        """What ended this rank: ``error``, or the error or end of a peer that caused it."""
        return error if self._faults is None else self._faults.root_cause(error)

    def destroy(self) -> None:
        """End the group once every rank calls this. After an error a process ends without it."""
        if self.members:
            gc.collect()  # wrapped modules, which are in cycles and hold the group
            self.barrier()
            distributed.destroy_process_group()


class AbsentRanks(ProcessGroup):
    """Rank 0 of ranks that are not there: the value of every other rank is its own."""

    is_absent = True

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh, self.size = mesh, mesh.size
        self.members = tuple(Member(rank, platform.node(), os.getpid()) for rank in range(mesh.size))

    def all_gather(self, value: _T) -> list[_T]:
        """The value, once for every rank."""
        return [value] * self.size

    def broadcast(self, rank: int, value: Any) -> Any:
        """The value."""
        return value

    def barrier(self) -> None:
        """Wait for nobody."""


@contextmanager
def absent_ranks(mesh: Mesh) -> Iterator[ProcessGroup]:
    """Inside, this process is rank 0 of PyTorch's process group ``fake``, which sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # which registers the group

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.size)
    try:
        yield AbsentRanks(mesh)
    finally:
        distributed.destroy_process_group()


def split(count: int, parts: int) -> list[range]:
    """``range(count)`` in so many parts, as ``Tensor.chunk`` splits; the last ones may be empty."""
    size = -(-count // parts)
    return [range(min(count, part * size), min(count, (part + 1) * size)) for part in range(parts)]


def group_of(argument: Any) -> distributed.ProcessGroup | None:
    """The process group that an argument of a collective's operator is, or names; None for any other."""
    found: Any = None
    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        found = distributed.ProcessGroup.unbox(argument)
    elif isinstance(argument, str) and argument in distributed_c10d._world.pg_names.values():
        found = distributed_c10d._resolve_process_group(argument)  # type: ignore[attr-defined, arg-type]
    return found  # type: ignore[no-any-return]


def init_process_group(
    world: World | None, options: RankOptions | None, device: torch.device
) -> ProcessGroup:
    """The process group of this run after all ranks have joined; without a world it has one process.

    Raises LostContact where they do not join within ``--comm-timeout``.
    """
    if world is None:
        return ProcessGroup()
    assert options is not None
    timeout = datetime.timedelta(seconds=options.comm_timeout)
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    if world.local_size == world.size:  # otherwise gloo guesses the interface from the name of this host
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        store = _store(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], world.rank, world.size, timeout)
        store.set_timeout(timeout)
        # it may have the addresses and reports of earlier runs and attempts
        store = PrefixStore(f"run {world.run}, attempt {world.attempt}", store)
        addresses = PrefixStore("ranks", store)
        distributed.init_process_group(
            backend, timeout=timeout, store=addresses, rank=world.rank, world_size=world.size
        )
    except (RuntimeError, OSError) as error:
        raise LostContact(
            f"rank {world.rank} of {world.size} on host {world.host} did not meet every other rank at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within {options.comm_timeout:g} s "
            f"(--comm-timeout): {str(error).splitlines()[0]}"
        ) from error
    group = ProcessGroup(options.mesh_of(world.size))
    group.watch(store, options.comm_timeout)
    return group


@cache
def _store(address: str, port: str, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The store where ranks meet. It is kept: rank 0 would end its own while others begin the next run."""
    return next(rendezvous("env://", rank, size, timeout=timeout))[0]
