"""Device arguments as users write them: ``0``, ``"cuda:1"``, ``torch.device("cpu", 3)``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dpexp.devices import HOST, label

Target = int | str | torch.device


def target(device: Target) -> torch.device:
    """The device meant. An int is an accelerator's index, -1 the host, as in torch.nn.parallel.

    Raises ValueError for an index on a machine without an accelerator: ``cpu:i`` has to be said.
    """
    if isinstance(device, torch.device | str):
        device = torch.device(device)
        if device.type not in ("cpu", "meta") and device.index is None:
            return torch.device(device.type, torch.accelerator.current_device_index())
        return device
    if device == -1:
        return HOST
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        raise ValueError(
            f"device {device} is the index of an accelerator, and this machine has none: "
            f"torch.device('cpu', {device}) is virtual device {device} (dpexp.devices.virtual(n) makes n)"
        )
    return torch.device(kind.type, device)


def targets(devices: Sequence[Target]) -> list[torch.device]:
    """``target`` of each. A device may stand in the list twice. Raises ValueError for an empty list."""
    if not devices:
        raise ValueError("no devices given: name at least one, as [torch.device('cpu', 0)]")
    return [target(device) for device in devices]


def listed(devices: Sequence[torch.device]) -> str:
    """``cpu:0, cpu:1, cpu:2``: the devices in an error message."""
    return ", ".join(map(label, devices))
