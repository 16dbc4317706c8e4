"""Energy: what the NVIDIA devices of a run have used between two moments, by NVML where it is installed."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from dpexp import devices


class EnergyMeter:
    """The joules of the devices since it was made, other programs on them included."""

    def __init__(self, used: Sequence[torch.device]) -> None:
        self._handles: dict[str, Any] = {}
        cuda = [device for device in used if device.type == "cuda"]
        with contextlib.suppress(ImportError):
            import pynvml

            if cuda:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    for device in cuda:
                        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
                        self._handles[devices.label(device)] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._start = self._read()

    def joules(self) -> dict[str, float]:
        """By device; empty where nothing can be read. Devices before Volta do not count them."""
        now = self._read()
        return {name: (now[name] - self._start[name]) / 1e3 for name in self._start.keys() & now.keys()}

    def _read(self) -> dict[str, int]:
        """Millijoules since the driver was loaded."""
        found: dict[str, int] = {}
        for name, handle in self._handles.items():
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                found[name] = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return found
