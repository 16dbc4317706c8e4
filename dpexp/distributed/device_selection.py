"""Device selection: which devices ``--devices`` and ``--virtual`` name."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.devices import accelerators, is_virtual, label, virtual

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
