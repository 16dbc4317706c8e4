"""ProcessGroup: how the processes of one run communicate outside of the model.

Here the group of one process: it returns its own values and waits for no other, so that callers need no
second code path. That of several ranks is in ``torch_process_group``.

TorchProcessGroup: the ranks of one run as a group of ``torch.distributed``, and how they meet.
"""

from __future__ import annotations

import datetime
import gc
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed.nn.functional  # before a group exists: its functions would keep the default group
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dpexp.config.errors import ConfigError, text_of
from dpexp.config.mesh import Mesh
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.device_mesh import make_device_mesh
from dpexp.distributed.faults import Faults, LostContact
from dpexp.distributed.world import Member, World

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


class TorchProcessGroup(ProcessGroup):
    """A group of ``torch.distributed`` with all ranks, on gloo; without one, the default group."""

    def __init__(self, mesh: Mesh, group: Any = None) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.mesh = mesh
        self._group = group
        self._device_mesh: DeviceMesh | None = None
        processes = self.all_gather((platform.node(), os.getpid()))
        self.members = tuple(Member(rank, *process) for rank, process in enumerate(processes))
        self._faults: Faults | None = None

    def watch(self, store: Any, timeout_s: float) -> None:
        """Report to the other ranks, in the group's store, what ends this one, and read their reports."""
        self._faults = Faults(store, self.rank, self.members, timeout_s)

    def device_mesh(self, device: torch.device) -> DeviceMesh:
        self._device_mesh = self._device_mesh or make_device_mesh(self.mesh, device)
        return self._device_mesh

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._group)
        return values

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        local = torch.tensor(values, dtype=torch.float64)
        by_rank = [torch.empty_like(local) for _ in range(self.size)]
        distributed.all_gather(by_rank, local, group=self._group)
        return [tensor.tolist() for tensor in by_rank]

    def broadcast(self, rank: int, value: Any) -> Any:
        values = [value if self.rank == rank else None]
        distributed.broadcast_object_list(values, src=rank, group=self._group)
        return values[0]

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        keys: list[list[str]] = self.all_gather(list(values))
        completed = dict.fromkeys(key for of_rank in keys for key in of_rank) | values
        for key in completed:
            if not all(key in of_rank for of_rank in keys):
                owner = next(rank for rank, of_rank in enumerate(keys) if key in of_rank)
                sent = self.broadcast(owner, values.get(key))
                completed[key] = values.get(key, sent)
        return completed

    def barrier(self) -> None:
        distributed.barrier(group=self._group)

    def check_agreement(self, error: BaseException | None, facts: dict[str, str]) -> None:
        by_rank = self.all_gather((f"{type(error).__name__}: {text_of(error)}" if error else "", facts))
        differs = self._disagreement(by_rank)
        if differs is None:
            return
        with suppress(RuntimeError):  # a rank was killed meanwhile
            self.destroy()
        raise error or differs

    def _disagreement(self, by_rank: list[tuple[str, dict[str, str]]]) -> ConfigError | None:
        for member, (message, facts) in zip(self.members, by_rank, strict=True):
            if message:
                return ConfigError(f"{member}: {message}")
            for name, value in facts.items():
                if value != by_rank[0][1].get(name, value):
                    return ConfigError(
                        f"the ranks differ in their {name}: {member} and {self.members[0]}. Give every rank "
                        "the same command, code and data"
                    )
        return None

    def all_failed(self, observing: str, text: str) -> bool:
        return self._faults is not None and self._faults.all_failed(observing, text)

    def root_cause(self, error: BaseException) -> BaseException:
        return error if self._faults is None else self._faults.root_cause(error)

    def destroy(self) -> None:
        gc.collect()  # wrapped modules, which are in cycles and hold the group
        self.barrier()
        distributed.destroy_process_group()


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
        backend = "gloo" if options.comm == "gloo" else "cpu:gloo,cuda:nccl"
    if world.local_size == world.size:  # otherwise gloo guesses the interface from the name of this host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    try:
        with _stdout_to_stderr():  # gloo prints its connections to stdout
            store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
            store.set_timeout(timeout)
            # without --standalone, torchrun's store has the addresses and reports of earlier attempts
            store = PrefixStore(f"attempt {world.attempt}", store)
            distributed.init_process_group(
                backend,
                timeout=timeout,
                store=PrefixStore("ranks", store),
                rank=world.rank,
                world_size=world.size,
            )
    except (RuntimeError, OSError, ValueError) as error:
        raise LostContact(
            f"rank {world.rank} of {world.size} on host {world.host} did not meet every other rank at "
            f"{world.address}:{world.port} within {options.comm_timeout:g} s (--comm-timeout): "
            f"{str(error).splitlines()[0]}"
        ) from error
    group = TorchProcessGroup(options.mesh_of(world.size))
    group.is_first_on_host = world.local_rank == 0
    group.watch(store, options.comm_timeout)
    return group


def _loopback() -> str:
    """The network interface of this host to itself."""
    import psutil

    found = (
        name for name, of in psutil.net_if_addrs().items() if any(each.address == "127.0.0.1" for each in of)
    )
    return next(found, "lo")


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Inside, stdout is stderr, for C++ code too: ``--json`` prints nothing but the Record to stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
