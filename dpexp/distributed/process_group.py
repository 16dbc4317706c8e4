"""The process group: how the processes of one run communicate outside of the model.

``ProcessGroup`` is the group of one process: it returns its own values and waits for no other, so that
callers need no second code path. ``TorchProcessGroup`` is a ``torch.distributed`` group.
"""

import datetime
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed.nn.functional  # before a group exists: its functions would keep the default group
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dpexp.config import ConfigError, RankOptions
from dpexp.config.errors import text_of
from dpexp.distributed.faults import Faults, LostContact
from dpexp.distributed.rendezvous import interface
from dpexp.distributed.world import Member, World


class ProcessGroup:
    """The group of a run that is one process; ``members`` is empty."""

    rank = 0
    size = 1
    members: tuple[Member, ...] = ()
    is_first_on_host = True

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the Record."""
        return self.rank == 0

    def all_gather(self, value: Any) -> list[Any]:
        """The value of every rank, by rank, on every rank."""
        return [value]

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        """``all_gather`` as one tensor: every rank must give the same number of values."""
        return [values]

    def broadcast(self, rank: int, value: Any) -> Any:
        """The value of one rank, on every rank."""
        return value

    def barrier(self) -> None:
        """Wait until every rank calls this."""

    def check_agreement(self, error: BaseException | None, facts: dict[str, str]) -> None:
        """Raises the error of this rank; ConfigError where another rank has one, or where facts differ."""
        if error is not None:
            raise error

    def root_cause(self, error: BaseException, is_terminated: Callable[[], bool]) -> BaseException:
        """What ended this rank: ``error``, or the error of a peer that caused it; at once if terminated."""
        return error

    def peer_error_or(self, error: BaseException) -> BaseException:
        """The error that a peer reported, else ``error``, by which this process was asked to end."""
        return error

    def destroy(self) -> None:
        """End the group once every rank calls this. After an error a process ends without it."""

    def rows(self, count: int) -> slice:
        """The rows of a global batch of ``count`` that this rank computes, split as ``Tensor.chunk`` does."""
        size = max(1, -(-count // self.size))
        return slice(min(count, self.rank * size), min(count, (self.rank + 1) * size))


class TorchProcessGroup(ProcessGroup):
    """The default group of ``torch.distributed``; Python objects are sent by gloo."""

    def __init__(self, world: World, store: Any, timeout_s: float) -> None:
        self.rank, self.size = world.rank, world.size
        self.is_first_on_host = world.local_rank == 0
        self.members = tuple(Member(rank, host) for rank, host in enumerate(self.all_gather(world.host)))
        self._faults = Faults(store, self.rank, self.members, timeout_s)

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def all_gather_numbers(self, values: list[float]) -> list[list[float]]:
        local = torch.tensor(values, dtype=torch.float64)
        by_rank = [torch.empty_like(local) for _ in range(self.size)]
        distributed.all_gather(by_rank, local)
        return [tensor.tolist() for tensor in by_rank]

    def broadcast(self, rank: int, value: Any) -> Any:
        values = [value if self.rank == rank else None]
        distributed.broadcast_object_list(values, src=rank)
        return values[0]

    def barrier(self) -> None:
        distributed.barrier()

    def check_agreement(self, error: BaseException | None, facts: dict[str, str]) -> None:
        by_rank = self.all_gather((f"{type(error).__name__}: {text_of(error)}" if error else "", facts))
        super().check_agreement(error, facts)
        for member, (message, others) in zip(self.members, by_rank, strict=True):
            if message:
                raise ConfigError(f"{member}: {message}")
            for name, value in others.items():
                if value != by_rank[0][1].get(name, value):
                    raise ConfigError(
                        f"the ranks differ in their {name}: {member} and {self.members[0]}. Give every rank "
                        "the same command, code and data"
                    )

    def root_cause(self, error: BaseException, is_terminated: Callable[[], bool]) -> BaseException:
        return self._faults.root_cause(error, is_terminated)

    def peer_error_or(self, error: BaseException) -> BaseException:
        try:
            return self._faults.reported() or error
        except (RuntimeError, OSError):
            return error

    def destroy(self) -> None:
        _drop_references()
        self.barrier()
        distributed.destroy_process_group()


def init_process_group(
    world: World | None, options: RankOptions | None, device: torch.device
) -> ProcessGroup:
    """The process group of this run after all ranks have joined; without a world it has one process.

    Raises LostContact where they do not join within ``--comm-timeout``, ConfigError for an unknown address.
    """
    if world is None:
        return ProcessGroup()
    assert options is not None
    timeout = datetime.timedelta(seconds=options.comm_timeout)
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "gloo" if options.comm == "gloo" else "cpu:gloo,cuda:nccl"
    # Otherwise gloo guesses the interface from the name of this host.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface(world.address, world.port))
    try:
        with _stdout_to_stderr():  # gloo prints its connections to stdout
            store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
            store.set_timeout(timeout)
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
    return TorchProcessGroup(world, store, options.comm_timeout)


def _drop_references() -> None:
    """Drop what else refers to the process group, so that gloo joins its threads when it is destroyed.

    A gloo thread that is the last to let go of a tensor asks for Python's lock. In an interpreter that is
    ending, Python 3.11 and 3.12 end such a thread by unwinding frames of C++ that must not be unwound: the
    process aborts («terminate called without an active exception»).
    """
    gc.collect()  # wrapped modules, which are in cycles
    for each in gc.get_objects():
        if type(each) is DeviceMesh:  # which caches of DTensor keep
            getattr(each, "_pg_registry", {}).clear()


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
