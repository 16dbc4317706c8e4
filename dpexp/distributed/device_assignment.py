"""Select: how many ranks a host gets, and the device of each."""

from __future__ import annotations

import torch

from dpexp import devices
from dpexp.config import ConfigError, RunConfig
from dpexp.devices import Selection
from dpexp.distributed.world import World


def select(config: RunConfig, world: World | None) -> Selection:
    """The devices of this process: as ``devices.select`` has them, or a rank's one.

    A rank on the CPU is ``cpu:<rank>``. Raises ConfigError where options and world contradict each other.
    """
    if world is None:
        return _first_rank(config) if config.options.launcher else devices.select(config)
    if not config.options.in_ranks:
        raise ConfigError(
            f"{config.strategy} is one process, and this is rank {world.rank} of {world.size}: start it "
            "without torchrun"
        )
    asked, there = per_host(config)
    if asked not in (None, world.local_size):
        raise ConfigError(
            f"--{'virtual' if config.virtual else 'devices'} asks for {asked} ranks a host and torchrun "
            f"started {world.local_size} here: say the same number, or leave the option out"
        )
    if not there:
        return Selection((_asked(config),), (devices.virtual(world.size)[world.rank],))
    if len(there) < world.local_size:
        raise ConfigError(
            f"{world.local_size} ranks on host {world.host} and {len(there)} accelerators: one for each is "
            f"needed. --devices cpu, or --virtual {world.local_size}, computes on the CPU"
        )
    return Selection((_asked(config),), (there[world.local_rank],))


def processes(config: RunConfig) -> int:
    """How many ranks to start on this host. Raises ConfigError for devices that are not there."""
    asked, there = per_host(config)
    return asked or max(1, len(there))


def per_host(config: RunConfig) -> tuple[int | None, tuple[torch.device, ...]]:
    """(ranks asked for on each host, or None; the accelerators for them, none on the CPU)."""
    asked, there = _asked_for(config)
    if getattr(config.options, "comm", "auto") == "nccl" and not there:
        raise ConfigError("--comm nccl: it needs a CUDA device for each rank; on the CPU say --comm gloo")
    return asked, there


def _asked_for(config: RunConfig) -> tuple[int | None, tuple[torch.device, ...]]:
    text = config.devices.strip()
    if config.virtual is not None:
        return config.virtual, ()
    if text.isdecimal() and int(text) > 0 and not devices.accelerators():
        return int(text), ()
    if text == "cpu":
        return None, ()
    used = devices.select(config).used
    return (None if text == "auto" else len(used)), used


def _first_rank(config: RunConfig) -> Selection:
    """A launched strategy before its launch is prepared, and shown by a dry run, as its first rank."""
    _, there = per_host(config)
    return Selection((_asked(config),), there[:1] or tuple(devices.virtual(1)))


def _asked(config: RunConfig) -> str:
    return f"{config.virtual} virtual" if config.virtual is not None else config.devices
