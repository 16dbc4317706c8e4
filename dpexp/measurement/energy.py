"""Energy: what processors and accelerators have used between two moments, where the machine reports it.

RAPL's counters in ``/sys/class/powercap`` are of the whole processor, other programs included; only root may
read them on most machines. NVML's are of each NVIDIA device.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dpexp import devices

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """The joules since it was made, of the processors (``with_host``) and of the devices that are used."""

    def __init__(
        self, used: Sequence[torch.device], with_host: bool = True, powercap: Path | None = None
    ) -> None:
        self._zones = _packages(powercap or POWERCAP) if with_host else {}
        self._handles = _nvml_handles(used)
        self._start = self._read()

    def joules(self) -> dict[str, float]:
        """By processor package (``package-0``) and device; empty where nothing can be read."""
        now = self._read()
        return {name: self._since(name, now[name]) for name in self._start.keys() & now.keys()}

    def _since(self, name: str, now: int) -> float:
        """Joules; a counter that has reached its end starts again at 0."""
        used = now - self._start[name]
        if used < 0 and name in self._zones:
            used += _number(self._zones[name] / "max_energy_range_uj") or 0
        return used / 1e6

    def _read(self) -> dict[str, int]:
        """Microjoules by name."""
        found = {name: _number(zone / "energy_uj") for name, zone in self._zones.items()}
        found |= _read_nvml(self._handles)
        return {name: count for name, count in found.items() if count is not None}


def _packages(powercap: Path) -> dict[str, Path]:
    """The zones of whole processors: neither their parts, nor the platform, which has them too."""
    zones = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError):
            name = (zone / "name").read_text().strip()
            if name.startswith("package-"):
                zones[name] = zone
    return zones


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _nvml_handles(used: Sequence[torch.device]) -> dict[str, Any]:
    """NVML's handles of the CUDA devices, by the devices' names."""
    cuda = [device for device in used if device.type == "cuda"]
    if not cuda:
        return {}
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            uuids = {device: torch.cuda.get_device_properties(device).uuid for device in cuda}
            return {
                devices.label(device): pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
                for device, uuid in uuids.items()
            }
    return {}


def _read_nvml(handles: Mapping[str, Any]) -> dict[str, int | None]:
    """Microjoules since the driver was loaded; devices before Volta do not count them."""
    found: dict[str, int | None] = {}
    if handles:
        import pynvml

        for name, handle in handles.items():
            with contextlib.suppress(pynvml.NVMLError):
                found[name] = 1000 * pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return found
