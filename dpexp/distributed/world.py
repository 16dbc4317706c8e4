"""World: which rank this process is, as torchrun's environment variables say, and the members of a group."""

from __future__ import annotations

import itertools
import os
import platform
from dataclasses import dataclass, field, replace
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.config.mesh import Dimension, Mesh

RUN_ID = "DPEXP_RUN_ID"
"""In the environment of ranks that ``launch`` has started: the id of their run."""
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_runs = itertools.count()


@dataclass(frozen=True)
class World:
    """One rank of ``size``; ``local_rank`` of the ``local_size`` on this host, which has the name ``host``.

    ``attempt`` counts how often their one agent, if so, has started the program again; ``run`` its runs.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str = field(default_factory=platform.node)
    attempt: int = 0
    run: int = 0

    @classmethod
    def of(cls) -> World | None:
        """The world that the environment describes; None if the process is not a rank.

        Raises ConfigError where variables are missing.
        """
        environ = os.environ
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return None
        missing = [name for name in _VARIABLES if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"RANK or WORLD_SIZE is set, but not {', '.join(missing)}: start the ranks with "
                "torchrun, or unset RANK and WORLD_SIZE"
            )
        rank, size, local_rank, local_size = (int(environ[name]) for name in _VARIABLES[:4])
        restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        attempt = restarts if local_size == size else 0  # hosts count them apart
        return cls(rank, size, local_rank, local_size, attempt=attempt)

    @classmethod
    def of_next_run(cls) -> World | None:
        """The world of a run that begins: the next one of this process. Every rank must call this."""
        world = cls.of()
        return replace(world, run=next(_runs)) if world is not None else None


@dataclass(frozen=True)
class Member:
    """One rank of a process group, its host, and its process there."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host}"

    def has_ended(self) -> bool:
        """Whether it is a process of this host that has ended."""
        import psutil  # 20 ms, which --help need not wait

        if self.host != platform.node():
            return False
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True


# --- the mesh of the ranks ---


def dimensions_of(device_mesh: Any) -> tuple[Dimension, ...]:
    """The dimensions of a DeviceMesh; one without names has empty ones."""
    sizes = device_mesh.shape
    names = device_mesh.mesh_dim_names or ("",) * len(sizes)
    return tuple(map(Dimension, names, sizes))


def as_mesh(device_mesh: Any) -> Mesh:
    """The Mesh of a DeviceMesh, whose ranks may be in any order."""
    return Mesh(dimensions_of(device_mesh), tuple(device_mesh.mesh.flatten().tolist()))
