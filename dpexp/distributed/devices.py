"""Device selection: which devices ``--devices`` and ``--virtual`` name.

Device assignment: how many ranks a host runs, and which device each rank uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

from dpexp import devices
from dpexp.config.errors import ConfigError, plural
from dpexp.config.run_config import MAX_VIRTUAL, RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.devices import accelerators, is_virtual, label, virtual
from dpexp.distributed.world import World

PLANNED_KINDS = ("cuda", "xpu", "mps")
"""Kinds of accelerators that a dry run can lay a model over without having them; a number means the first."""
MAX_PLANNED = 64
"""The most accelerators of one machine; PyTorch numbers them with 7 bits."""


@dataclass(frozen=True)
class DeviceSelection:
    """The devices that a run requested and those that it uses (empty: only the host)."""

    requested: tuple[str, ...]
    used: tuple[torch.device, ...]

    @property
    def is_virtual(self) -> bool:
        return any(is_virtual(device) for device in self.used)

    @property
    def missing(self) -> tuple[torch.device, ...]:
        """The accelerators that this machine does not have: only a dry run may use them."""
        present = accelerators()
        return tuple(each for each in self.used if each.type != "cpu" and each not in present)


def select_devices(config: RunConfig, *, planned: bool = False) -> DeviceSelection:
    """The devices of ``--devices`` or ``--virtual``; without an accelerator some strategies emulate devices.

    ``planned`` admits accelerators of other machines, for a dry run. Raises ConfigError for devices that the
    machine does not have; the message lists those that it has.
    """
    if config.virtual is not None:
        used = virtual(config.virtual)
        return DeviceSelection(tuple(map(label, used)), tuple(used))
    requested = config.devices.strip()
    if requested == "cpu":
        return DeviceSelection(("cpu",), ())
    present = accelerators()
    if requested == "auto":
        return DeviceSelection(("auto",), tuple(present or virtual(config.options.emulated)))
    if requested.isdecimal():
        count = int(requested[:9])
        if count < 1:
            raise ConfigError(f"--devices {count}: it must be at least 1; --devices cpu uses only the host")
        if planned and len(present) < count <= MAX_PLANNED:
            kind = present[0].type if present else PLANNED_KINDS[0]
            present = [torch.device(kind, index) for index in range(count)]
        if count > len(present):
            raise _not_present(requested, present, requested)
        return DeviceSelection((requested,), tuple(present[:count]))
    names = tuple(name.strip() for name in requested.split(","))
    named = tuple(_named(name, present, planned) for name in names)
    kinds = dict.fromkeys(device.type for device in named)
    if len(kinds) > 1 and not config.options.mixes_kinds:
        raise ConfigError(
            f"--devices {requested}: {config.strategy} needs devices of one kind, these are "
            f"{' and '.join(kinds)}; place takes several"
        )
    return DeviceSelection(names, named)


def _named(name: str, present: Sequence[torch.device], planned: bool) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"--devices '{name}': use auto, cpu, a number, or names like cuda:0,cuda:1"
        ) from None
    if device.type == "cpu":
        raise ConfigError(f"--devices '{name}': use --virtual N for emulated devices, cpu for only the host")
    if device.index is None:
        device = torch.device(device.type, 0)
    is_wrapped = label(device) not in (name, f"{name}:0")  # by PyTorch, which makes cuda:999 cuda:-25
    if planned and (is_wrapped or device.index >= MAX_PLANNED):
        raise ConfigError(f"--devices '{name}': the number of a device is at most {MAX_PLANNED - 1}")
    if is_wrapped or (device not in present and not (planned and device.type in PLANNED_KINDS)):
        raise _not_present(f"'{name}'", present)
    return device


def _not_present(requested: str, present: Sequence[torch.device], count: str = "N") -> ConfigError:
    names = ", ".join(map(label, present))
    found = f"{len(present)} accelerators ({names})" if present else "no accelerator"
    return ConfigError(
        f"--devices {requested}: this machine has {found}. "
        f"--virtual {count} emulates {count} devices on the CPU; --dry-run shows the layout without them"
    )


def assign_device(config: RunConfig, world: World | None, *, planned: bool = False) -> DeviceSelection:
    """The devices of this process: the one of a rank, or all that the options name.

    A rank on the CPU uses ``cpu:<rank>``. Before its ranks are started, and in a dry run, a launched strategy
    gets the device of the first one. ``planned`` admits accelerators of other machines. Raises ConfigError
    where options and world contradict each other.
    """
    if world is None and config.options.launch_options is None:
        selection = select_devices(config, planned=planned)
        if config.options.uses_one_device:
            _check_one_device(config, selection.used)
        return selection
    if world is not None and config.options.rank_options is None:
        rank = f"rank {world.rank} of {world.size}"
        raise ConfigError(f"{config.strategy} is one process, and this is {rank}: start it without torchrun")
    requested = (f"{config.virtual} virtual" if config.virtual is not None else config.devices,)
    count, accelerators = _per_host(config, planned)
    if world is None:
        return DeviceSelection(requested, accelerators[:1] or tuple(_virtual(count or 1)[:1]))
    if count not in (None, world.local_size):
        raise ConfigError(
            f"--{'virtual' if config.virtual else 'devices'} asks for {plural(count, 'rank')} a host and "
            f"torchrun started {world.local_size} on this one: give the same number, or leave the option out"
        )
    if not accelerators:
        return DeviceSelection(requested, (_virtual(world.size)[world.rank],))
    if len(accelerators) < world.local_size:
        raise ConfigError(
            f"host {world.host} has {plural(world.local_size, 'rank')} and "
            f"{plural(len(accelerators), 'accelerator')}: each rank needs one. "
            f"--devices cpu, or --virtual {world.local_size}, computes on the CPU"
        )
    return DeviceSelection(requested, (accelerators[world.local_rank],))


def _check_one_device(config: RunConfig, used: Sequence[torch.device]) -> None:
    """Raises ConfigError where the options name several devices; ``auto`` names none."""
    if len(used) > 1 and (config.virtual or config.devices != "auto"):
        option, one = ("--virtual", 1) if config.virtual else ("--devices", used[0])
        raise ConfigError(
            f"{option} gives {len(used)} devices and {config.strategy} uses one: write {option} {one}, or "
            "choose a strategy that uses several, such as whole"
        )


def processes(config: RunConfig, *, planned: bool = False) -> int:
    """How many ranks to start on this host; ``planned`` admits accelerators of other machines.

    Raises ConfigError for devices that this host does not have.
    """
    count, accelerators = _per_host(config, planned)
    options = config.options.launch_options
    if not count and options is not None:
        count = options.ranks
    return count or max(1, len(accelerators))


def rank_devices(config: RunConfig, ranks: int) -> list[torch.device]:
    """The device of each of so many ranks on hosts like this one, whose accelerators may be missing here."""
    _, accelerators = _per_host(config, planned=True)
    return list(islice(cycle(accelerators), ranks)) if accelerators else _virtual(ranks)


def _virtual(ranks: int) -> list[torch.device]:
    if ranks > MAX_VIRTUAL:
        raise ConfigError(f"{plural(ranks, 'rank')} on the CPU: at most {MAX_VIRTUAL}, on all hosts together")
    return devices.virtual(ranks)


def _ranks_on_the_cpu(text: str) -> int:
    if len(text) > 4 or int(text) > MAX_VIRTUAL:
        raise ConfigError(f"--devices {text}: at most {MAX_VIRTUAL} ranks can be started on the CPU")
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
            accelerators = select_devices(config, planned=planned).used
            count = len(accelerators)
    options = config.options.rank_options
    if options is not None and options.comm == "nccl" and not accelerators:
        raise ConfigError("--comm nccl needs a CUDA device for each rank; on the CPU use --comm gloo")
    if options is not None and accelerators:
        _check_backend(config.strategy, options, accelerators)
    return count, accelerators


def _check_backend(strategy: str, options: RankOptions, accelerators: Sequence[torch.device]) -> None:
    """Raises ConfigError where NCCL or gloo would fail in the run, with an error that does not say why."""
    if options.comm == "gloo":
        if options.has_dtensors:
            raise ConfigError(
                f"--comm gloo: with tensors on accelerators {strategy} crashes in PyTorch (seen with 2.11); "
                "use --comm nccl, or --devices cpu"
            )
    elif len(set(accelerators)) < len(accelerators) and accelerators[0].type == "cuda":
        names = ",".join(map(devices.label, accelerators))
        gloo = "" if options.has_dtensors else ", or use --comm gloo, whose ranks may share one"
        raise ConfigError(f"--devices {names}: NCCL takes one rank per device; name each device once{gloo}")
