"""World: which rank this process is, as torchrun's environment variables say."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpexp.config.errors import ConfigError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """One rank of ``size``; ``local_rank`` of the ``local_size`` on this host, which has the name ``host``.

    The first rank listens at ``address`` and ``port``. ``attempt`` counts the restarts of all ranks; 0 where
    hosts count them apart.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    host: str = field(default_factory=platform.node)
    attempt: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> World | None:
        """The world that the environment describes; None if the process is not a rank.

        Raises ConfigError where the variables are incomplete or contradict each other.
        """
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return None
        missing = [name for name in _VARIABLES if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"RANK or WORLD_SIZE is set, but not {', '.join(missing)}: start the ranks with "
                "torchrun, or unset RANK and WORLD_SIZE"
            )
        rank, size, local_rank, local_size = (_whole_number(name, environ[name]) for name in _VARIABLES[:4])
        if not (local_rank < local_size <= size and rank < size):
            found = ", ".join(f"{name}={environ[name]}" for name in _VARIABLES[:4])
            raise ConfigError(f"the world does not add up: {found}; ranks count from 0")
        port = _whole_number("MASTER_PORT", environ["MASTER_PORT"])
        restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
        attempt = int(restarts) if restarts.isdecimal() and local_size == size else 0
        return cls(rank, size, local_rank, local_size, environ["MASTER_ADDR"], port, attempt=attempt)


def restarts_left(environ: Mapping[str, str] = os.environ) -> int:
    """How often torchrun will still start this host's ranks again after one ends with an error."""
    most, done = (environ.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return int(most) - int(done) if most.isdecimal() and done.isdecimal() else 0


@dataclass(frozen=True)
class Member:
    """One rank of a process group, its host, and its process there; 0 if that is not known."""

    rank: int
    host: str
    pid: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host}"

    def has_ended(self) -> bool:
        """Whether it is a process of this host that has ended."""
        import psutil

        if not self.pid or self.host != platform.node():
            return False
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"environment variable {name}='{text}' is not a whole number: torchrun sets it")
    return int(text)
