"""World: which rank this process is, as torchrun tells it in the environment."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from dpexp.config import ConfigError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """One rank among ``size``; ``local_rank`` among the ``local_size`` of this host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> World | None:
        """The world that the environment tells of; None for a process that stands alone.

        Raises ConfigError where the variables are incomplete or contradict each other.
        """
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return None
        missing = [name for name in VARIABLES if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"the environment tells of ranks but has no {', '.join(missing)}: start the ranks with "
                "torchrun, or unset RANK and WORLD_SIZE"
            )
        rank, size, local_rank, local_size = (_number(name, environ[name]) for name in VARIABLES[:4])
        port = _number("MASTER_PORT", environ["MASTER_PORT"])
        world = cls(rank, size, local_rank, local_size, environ["MASTER_ADDR"], port)
        if not (world.local_rank < world.local_size <= world.size and world.rank < world.size):
            told = ", ".join(f"{name}={environ[name]}" for name in VARIABLES[:4])
            raise ConfigError(f"the world does not add up: {told}; ranks are counted from 0")
        return world

    @property
    def host(self) -> str:
        """The name of this rank's host."""
        return platform.node()

    @property
    def is_launched_here(self) -> bool:
        """Whether every rank is on this host."""
        return self.local_size == self.size


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"environment variable {name}='{text}': it must be a whole number, from torchrun")
    return int(text)
