"""Device assignment: how many ranks a host runs, and which device each rank uses."""

import torch

from dpexp import devices
from dpexp.config import ConfigError, LaunchOptions, RankOptions, RunConfig
from dpexp.devices import Selection
from dpexp.distributed.rendezvous import host_range
from dpexp.distributed.world import World

MAX_RANKS = 1024


def assign_device(config: RunConfig, world: World | None, *, planned: bool = False) -> Selection:
    """The devices of this process: the one of a rank, or all that the options name.

    A rank on the CPU uses ``cpu:<rank>``. Before its ranks are started, and in a dry run, a launched strategy
    gets the device of the first one. ``planned`` admits accelerators of other machines. Raises ConfigError
    where options and world contradict each other.
    """
    if world is None and not config.options.launches:
        return devices.select(config, planned=planned)
    if world is not None and not isinstance(config.options, RankOptions):
        rank = f"rank {world.rank} of {world.size}"
        raise ConfigError(f"{config.strategy} is one process, and this is {rank}: start it without torchrun")
    requested = (f"{config.virtual} virtual" if config.virtual is not None else config.devices,)
    count, accelerators = _per_host(config, planned)
    if world is None:
        return Selection(requested, accelerators[:1] or tuple(devices.virtual(1)))
    if count not in (None, world.local_size):
        raise ConfigError(
            f"--{'virtual' if config.virtual else 'devices'} asks for {count} ranks a host and torchrun "
            f"started {world.local_size} on this one: give the same number, or leave the option out"
        )
    if not accelerators:
        return Selection(requested, (devices.virtual(world.size)[world.rank],))
    if len(accelerators) < world.local_size:
        raise ConfigError(
            f"host {world.host} has {world.local_size} ranks and {len(accelerators)} accelerators: each rank "
            f"needs one. --devices cpu, or --virtual {world.local_size}, computes on the CPU"
        )
    return Selection(requested, (accelerators[world.local_rank],))


def processes(config: RunConfig, *, planned: bool = False) -> int:
    """How many ranks to start on this host; ``planned`` admits accelerators of other machines.

    Raises ConfigError for devices that this host does not have.
    """
    count, accelerators = _per_host(config, planned)
    options = config.options
    if not count and isinstance(options, LaunchOptions):
        count = options.ranks // host_range(options)[0]
    return count or max(1, len(accelerators))


def _ranks_on_the_cpu(text: str) -> int:
    if len(text) > 4 or int(text) > MAX_RANKS:
        raise ConfigError(f"--devices {text}: at most {MAX_RANKS} processes can be started on a host")
    return int(text)


def _per_host(config: RunConfig, planned: bool) -> tuple[int | None, tuple[torch.device, ...]]:
    """(number of ranks that the options name, or None; the accelerators for them, none on the CPU)."""
    text, count = config.devices.strip(), config.virtual
    accelerators: tuple[torch.device, ...] = ()
    if count is None and text != "cpu":
        if text.isdecimal() and text.strip("0") and not devices.accelerators():
            count = _ranks_on_the_cpu(text)
        elif text == "auto":
            accelerators = tuple(devices.accelerators())
        else:
            accelerators = devices.select(config, planned=planned).used
            count = len(accelerators)
    if getattr(config.options, "comm", "auto") == "nccl" and not accelerators:
        raise ConfigError("--comm nccl needs a CUDA device for each rank; on the CPU use --comm gloo")
    return count, accelerators
