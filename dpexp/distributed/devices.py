"""Devices of a run: those that ``--devices`` and ``--virtual`` name, and which of them each rank uses.

DeviceRequest      one process    all that it names
                   ranks          how many a host starts, and the one that each of them uses
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import torch

from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import MAX_VIRTUAL
from dpexp.config.strategy_options import RankOptions, StrategyOptions
from dpexp.config.words import plural
from dpexp.devices import accelerators, is_virtual, label
from dpexp.distributed.world import World

PLANNED_KINDS = ("cuda", "xpu", "mps")
"""Kinds of accelerators that a dry run can plan for without having them; a number means the first."""


@dataclass(frozen=True)
class DeviceSelection:
    """The devices that a run requested and those that it uses (empty: only the host)."""

    requested: tuple[str, ...]
    used: tuple[torch.device, ...]

    @property
    def is_virtual(self) -> bool:
        """Whether one of them is emulated."""
        return any(is_virtual(device) for device in self.used)

    @property
    def missing(self) -> tuple[torch.device, ...]:
        """The accelerators that this machine does not have: only a dry run may use them."""
        present = accelerators()
        return tuple(each for each in self.used if each.type != "cpu" and each not in present)


@dataclass(frozen=True)
class DeviceRequest:
    """What ``--devices`` and ``--virtual`` ask for, in a run with these options of its strategy.

    ``planned`` admits accelerators that this machine does not have, for a dry run.
    """

    devices: str
    virtual: int | None
    options: StrategyOptions
    planned: bool = False

    def select(self) -> DeviceSelection:
        """All devices that the request names; without an accelerator some strategies emulate devices.

        Raises ConfigError for devices that the machine does not have; the message lists those that it has.
        """
        if self.virtual is not None:
            used = devices.virtual(self.virtual)
            return DeviceSelection(tuple(map(label, used)), tuple(used))
        present, text = accelerators(), self.devices.strip()
        if text == "cpu":
            return DeviceSelection(("cpu",), ())
        if text == "auto":
            return DeviceSelection(("auto",), tuple(present or devices.virtual(self.options.emulated)))
        if text.isdecimal():
            return DeviceSelection((text,), self._first(int(text), present))
        names = tuple(name.strip() for name in text.split(","))
        return DeviceSelection(names, tuple(self._named(name, present) for name in names))

    def _first(self, count: int, present: Sequence[torch.device]) -> tuple[torch.device, ...]:
        if count < 1:
            raise ConfigError(f"--devices {count}: it must be at least 1; --devices cpu uses only the host")
        if self.planned and len(present) < count <= MAX_VIRTUAL:
            kind = present[0].type if present else PLANNED_KINDS[0]
            return tuple(torch.device(kind, index) for index in range(count))
        if count > len(present):
            raise _not_present(str(count), present, str(count))
        return tuple(present[:count])

    def _named(self, name: str, present: Sequence[torch.device]) -> torch.device:
        try:
            device = torch.device(name)
        except RuntimeError:
            raise ConfigError(
                f"--devices '{name}': use auto, cpu, a number, or names like cuda:0,cuda:1"
            ) from None
        if device.type == "cpu":
            raise ConfigError(f"--devices '{name}': use --virtual N for emulated devices, cpu for the host")
        if device.index is None:
            device = torch.device(device.type, 0)
        is_wrapped = label(device) not in (name, f"{name}:0")  # by PyTorch, which makes cuda:999 cuda:-25
        can_be_planned = self.planned and device.type in PLANNED_KINDS
        if is_wrapped or not (device in present or can_be_planned):
            raise _not_present(f"'{name}'", present)
        return device

    def of_rank(self, world: World | None) -> DeviceSelection:
        """The devices of this process: the one of a rank, or all that the request names.

        A rank on the CPU uses ``cpu:<rank>``. Before its ranks are started, and in a dry run, a launched
        strategy gets the device of the first one. Raises ConfigError where options and world contradict each
        other.
        """
        if world is None and self.options.launched_ranks is None:
            selection = self.select()
            if self.options.uses_one_device:
                self._check_one(selection.used)
                return replace(selection, used=selection.used[:1])
            return selection
        if world is not None and not isinstance(self.options, RankOptions):
            raise ConfigError(
                f"{self.options.strategy} is one process, and this is rank {world.rank} of "
                f"{world.size}: start it without torchrun"
            )
        requested = (f"{self.virtual} virtual" if self.virtual is not None else self.devices,)
        count, found = self._per_host()
        if world is None:
            return DeviceSelection(requested, found[:1] or tuple(devices.virtual(1)))
        if count not in (None, world.local_size):
            raise ConfigError(
                f"--{'virtual' if self.virtual else 'devices'} asks for {plural(count, 'rank')} per host and "
                f"torchrun started {world.local_size} on this one: give the same number, or leave the option "
                "out"
            )
        if not found:
            return DeviceSelection(requested, (devices.virtual(world.size)[world.rank],))
        if len(found) < world.local_size:
            raise ConfigError(
                f"host {world.host} has {plural(world.local_size, 'rank')} and "
                f"{plural(len(found), 'accelerator')}: each rank needs one. "
                f"--devices cpu, or --virtual {world.local_size}, computes on the CPU"
            )
        return DeviceSelection(requested, (found[world.local_rank],))

    def _check_one(self, used: Sequence[torch.device]) -> None:
        if len(used) > 1 and (self.virtual or self.devices != "auto"):
            option, one = ("--virtual", 1) if self.virtual else ("--devices", used[0])
            raise ConfigError(
                f"{option} gives {len(used)} devices and {self.options.strategy} uses one: write "
                f"{option} {one}, or choose a strategy that uses several, such as whole"
            )

    def ranks_per_host(self) -> int:
        """How many ranks to start on this host. Raises ConfigError for devices that it does not have."""
        count, found = self._per_host()
        return count or self.options.launched_ranks or max(1, len(found))

    def of_ranks(self, ranks: int) -> list[torch.device]:
        """The device of each of so many ranks, on hosts like this one."""
        _, found = self._per_host()
        return list(islice(cycle(found), ranks)) if found else devices.virtual(ranks)

    def _per_host(self) -> tuple[int | None, tuple[torch.device, ...]]:
        """(number of ranks that the request names, or None; the accelerators for them, none on the CPU)."""
        text, count, found = self.devices.strip(), self.virtual, tuple(accelerators())
        if count is not None or text == "cpu":
            found = ()
        elif text.isdecimal() and int(text) and not found:
            count = len(devices.virtual(int(text)))
        elif text != "auto":
            found = self.select().used
            count = len(found)
        return count, found


def _not_present(requested: str, present: Sequence[torch.device], count: str = "N") -> ConfigError:
    names = ", ".join(map(label, present))
    found = f"{len(present)} accelerators ({names})" if present else "no accelerator"
    return ConfigError(
        f"--devices {requested}: this machine has {found}. --virtual {count} emulates {count} devices on the "
        f"CPU; --dry-run shows the layout on up to {MAX_VIRTUAL} accelerators without them"
    )
