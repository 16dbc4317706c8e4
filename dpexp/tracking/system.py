"""System metrics of a run: sampled in the uploader process, so that the measured one is left alone.

They lie in ``system.jsonl`` beside the journal, in the journal's own format, and are delivered as the journal
is; MLflow shows them under the names of its own monitor. ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL``
(seconds, default 1) and ``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false`` are honoured.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from dpexp.record.journal import encode_line


class Sampler:
    """Samples the machine and one process at an interval, in a thread, into a file."""

    def __init__(self, path: Path, pid: int) -> None:
        import psutil

        self._path = path
        self._process = psutil.Process(pid)
        self._interval_s = float(os.environ.get("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL") or 1.0)
        self._over = threading.Event()
        self._seq = 0
        self._network = psutil.net_io_counters()
        self._gpus = _Gpus()
        self._thread = threading.Thread(target=self._sample_until_over, daemon=True, name="system metrics")
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample and end."""
        self._over.set()
        self._thread.join()

    def _sample_until_over(self) -> None:
        import psutil

        psutil.cpu_percent()  # the first call only starts the clock
        with contextlib.suppress(OSError, psutil.Error), open(self._path, "ab", buffering=0) as file:
            self._write(file)
            while not self._over.wait(self._interval_s):
                self._write(file)
            self._write(file)

    def _write(self, file: Any) -> None:
        values = self.sample()
        file.write(
            encode_line(
                {
                    "seq": self._seq,
                    "at": time.time_ns() // 1_000_000,
                    "extend": {f"system.{name}": [value] for name, value in values.items()},
                    "from": {f"system.{name}": self._seq for name in values},
                }
            )
        )
        self._seq += 1

    def sample(self) -> dict[str, float]:
        """The figures of this moment, by MLflow's names; ``process_…`` are the run's own process."""
        import psutil

        memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (network.bytes_recv - self._network.bytes_recv) / 1e6,
            "network_transmit_megabytes": (network.bytes_sent - self._network.bytes_sent) / 1e6,
        }
        with contextlib.suppress(psutil.Error):  # it has ended: the machine's figures remain
            values["process_cpu_percentage"] = self._process.cpu_percent()
            values["process_memory_megabytes"] = self._process.memory_info().rss / 1e6
        return values | self._gpus.sample()


class _Gpus:
    """NVIDIA devices by NVML, where its package and its driver are; else none."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            import pynvml
        except ImportError:
            return
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def sample(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for i, handle in enumerate(self._handles):
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                values[f"gpu_{i}_memory_usage_megabytes"] = memory.used / 1e6
                values[f"gpu_{i}_memory_usage_percentage"] = 100 * memory.used / memory.total
                values[f"gpu_{i}_utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        return values


def start(path: Path, pid: int) -> Sampler | None:
    """Begin to sample; None where the user switched it off, and where it can't be done.

    That is without psutil, with an interval that is no number, and for a process that is gone.
    """
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("false", "0"):
        return None
    try:
        import psutil
    except ImportError:
        return None
    with contextlib.suppress(ValueError, psutil.NoSuchProcess):
        return Sampler(path, pid)
    return None
