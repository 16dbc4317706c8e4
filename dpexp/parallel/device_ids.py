"""Device arguments as users write them: ``0``, ``"cuda:1"``, ``torch.device("cpu", 3)``."""

from collections.abc import Sequence

import torch

from dpexp.devices import HOST

DeviceId = int | str | torch.device


def to_device(device: DeviceId) -> torch.device:
    """The ``torch.device``. An int is the index of an accelerator, -1 the host, as in torch.nn.parallel.

    Raises ValueError for an index on a machine without an accelerator: virtual devices have no int.
    """
    if isinstance(device, torch.device) and device.type == "cpu":
        return device  # the other way to itself takes 1 µs, three times a replica
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


def to_devices(devices: Sequence[DeviceId]) -> list[torch.device]:
    """``to_device`` of each; a device may occur twice. Raises ValueError for an empty list."""
    if not devices:
        raise ValueError("no devices given: name at least one, as [torch.device('cpu', 0)]")
    return list(map(to_device, devices))
