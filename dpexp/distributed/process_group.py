"""TorchProcessGroup: the processes of one run and how they speak to each other outside of the model.

``ProcessGroup`` is a run of one process: it gathers its own value and waits for nobody, so that the loop is
written once.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dpexp.config import ConfigError, RankOptions
from dpexp.distributed.faults import LostContact, PeerError, error_to_json, is_communication
from dpexp.distributed.world import World


@dataclass(frozen=True)
class Member:
    """Where a rank is."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host}"


class ProcessGroup:
    """A run that is one process."""

    rank = 0
    size = 1
    members: tuple[Member, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this rank records."""
        return self.rank == 0

    def all_gather(self, value: Any) -> list[Any]:
        """The value of every rank, by rank, on every rank."""
        return [value]

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        """As ``gather``, in one message: every rank must give as many numbers."""
        return [values]

    @property
    def is_first_on_host(self) -> bool:
        """Whether this is the first rank of its host."""
        return True

    def broadcast(self, rank: int, value: Any) -> Any:
        """That rank's value, on every rank."""
        return value

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def check_agreement(self, error: Exception | None, facts: dict[str, str]) -> None:
        """Raises this rank's error; on the other ranks ConfigError, also where facts differ between ranks."""
        if error is not None:
            raise error

    def root_cause(self, error: BaseException) -> BaseException:
        """What ended this rank: its own error, or the peer that took it down."""
        return error

    def peer_error_or(self, error: BaseException) -> BaseException:
        """What is behind the order to end: a peer's error where there is one, else the order itself."""
        return error

    def destroy(self) -> None:
        """Take the group down after a run in order, once every rank is here. After an error, just end."""

    def rows(self, count: int) -> slice:
        """The rows of a global batch of ``count`` that this rank computes, as ``Tensor.chunk`` cuts it."""
        size = max(1, -(-count // self.size))
        return slice(min(count, self.rank * size), min(count, (self.rank + 1) * size))


class TorchProcessGroup(ProcessGroup):
    """Several processes, in a ``torch.distributed`` group; objects travel by gloo."""

    def __init__(self, world: World, store: Any, timeout_s: float) -> None:
        self.world = world
        self.rank, self.size = world.rank, world.size
        self._store = store
        self._timeout_s = timeout_s
        self.members = tuple(Member(**each) for each in self.all_gather(asdict(self._me())))

    def _me(self) -> Member:
        return Member(self.rank, self.world.host, os.getpid())

    def all_gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        own = torch.tensor(values, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        torch.distributed.all_gather(found, own)
        return [each.tolist() for each in found]

    @property
    def is_first_on_host(self) -> bool:
        return self.world.local_rank == 0

    def broadcast(self, rank: int, value: Any) -> Any:
        found = [value if self.rank == rank else None]
        torch.distributed.broadcast_object_list(found, src=rank)
        return found[0]

    def barrier(self) -> None:
        torch.distributed.barrier()

    def check_agreement(self, error: Exception | None, facts: dict[str, str]) -> None:
        by_rank = self.all_gather((f"{type(error).__name__}: {error}" if error else "", facts))
        super().check_agreement(error, facts)
        for member, (message, others) in zip(self.members, by_rank, strict=True):
            if message:
                raise ConfigError(f"{member}: {message}")
            for name, value in others.items():
                if value != by_rank[0][1].get(name, value):
                    raise ConfigError(
                        f"the ranks differ in their {name}: {member} has another than {self.members[0]}. "
                        "Give every rank the same command, code and data"
                    )

    # --- the end ---

    def root_cause(self, error: BaseException) -> BaseException:
        """A peer's own error, or the names of those that are gone; an error of this rank is told to all."""
        if isinstance(error, PeerError):
            return error
        found: list[BaseException] = []
        # In a thread: over a link that was cut, a call to the store may not return.
        asking = threading.Thread(target=self._ask, args=(error, found), daemon=True)
        asking.start()
        asking.join(self._timeout_s)
        if found:
            return found[0]
        return LostContact(f"lost contact with {self.members[0]}, through whom the ranks find each other")

    def _ask(self, error: BaseException, found: list[BaseException]) -> None:
        try:
            if is_communication(error):
                found.append(self._called(error))
            else:
                self._store.set(f"failed/{self.rank}", error_to_json(self.members[self.rank], error))
                found.append(error)
        except (RuntimeError, OSError):  # the store is gone, and with it the first rank, which holds it
            if not is_communication(error):
                found.append(error)

    def _called(self, error: BaseException) -> PeerError:
        """Roll-call: who answers within a few seconds, who has failed, and who is missing."""
        self._store.set(f"present/{self.rank}", "")
        deadline = time.monotonic() + min(5.0, self._timeout_s)
        while True:
            for rank in range(self.size):
                if self._store.check([f"failed/{rank}"]):
                    return PeerError.of(self._store.get(f"failed/{rank}"))
            missing = [each for each in self.members if not self._store.check([f"present/{each.rank}"])]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if not missing:
            return LostContact(
                f"the ranks lost contact with each other for {self._timeout_s:g} s "
                f"(--comm-timeout): {str(error).splitlines()[0]}"
            )
        gone = ", ".join(map(str, missing))
        return LostContact(
            f"lost contact with {gone}: it was killed, or its host or the link to it is gone "
            f"(waited up to {self._timeout_s:g} s, --comm-timeout)"
        )

    def peer_error_or(self, error: BaseException) -> BaseException:
        try:
            for rank in range(self.size):
                if self._store.check([f"failed/{rank}"]):
                    return PeerError.of(self._store.get(f"failed/{rank}"))
        except (RuntimeError, OSError):
            return error  # the store went with the first rank: there is nothing to read
        return error

    def destroy(self) -> None:
        self.barrier()
        torch.distributed.destroy_process_group()


def init_process_group(
    world: World | None, options: RankOptions | None, device: torch.device
) -> ProcessGroup:
    """The ranks of this run, met within ``--comm-timeout``; alone where there is no world.

    Raises ConfigError when they cannot meet.
    """
    if world is None:
        return ProcessGroup()
    assert options is not None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return TorchProcessGroup(world, _met(world, options, device.type == "cuda"), options.comm_timeout)


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """What C++ code prints to stdout inside goes to stderr: stdout belongs to the Record."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _met(world: World, options: RankOptions, uses_cuda: bool) -> Any:
    timeout = datetime.timedelta(seconds=options.comm_timeout)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface(world))
    try:
        with stdout_as_stderr():  # gloo tells on stdout whom it met
            store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
            store.set_timeout(timeout)
            torch.distributed.init_process_group(
                backend(options.comm, uses_cuda),
                store=PrefixStore("ranks", store),
                rank=world.rank,
                world_size=world.size,
                timeout=timeout,
            )
    except (RuntimeError, OSError, ValueError) as error:
        raise LostContact(
            f"rank {world.rank} of {world.size} on host {world.host} did not meet every other rank at "
            f"{world.address}:{world.port} within {options.comm_timeout:g} s (--comm-timeout): "
            f"{str(error).splitlines()[0]}"
        ) from error
    return store


def backend(comm: str, uses_cuda: bool) -> str:
    """The group's backend by kind of tensor: what is on the host always travels by gloo."""
    return "cpu:gloo,cuda:nccl" if uses_cuda and comm != "gloo" else "gloo"


def interface(world: World) -> str:
    """The network interface on the way to the first rank: gloo must not guess it from the host's name.

    Raises ConfigError for an address that cannot be resolved.
    """
    import psutil

    address = local_address(world.address, world.port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return "lo"


def resolved(host: str, port: int = 0) -> str:
    """The address of a host. Raises ConfigError."""
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        raise ConfigError(
            f"host name '{host}' cannot be resolved: name a host that every rank can resolve, or its address"
        ) from None


def addresses_here() -> set[str]:
    """Every address of this machine."""
    import psutil

    return {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}


def local_address(host: str, port: int) -> str:
    """The address of this machine from which the host is reached. Raises ConfigError."""
    address = resolved(host, port)
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port or 1))  # sends nothing: it only asks for the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"host '{host}' cannot be reached from here: {error.strerror}") from None
